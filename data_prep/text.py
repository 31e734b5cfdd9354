"""Conversations in, a training set out.

  python -m data_prep text chats.jsonl more/ --out data/chats
  accelerate launch finetune/train.py --recipe llm_sft --data.train data/chats/train.jsonl

Reads .jsonl, .json, .csv, .parquet and folders that `datasets` saved, in the shapes messages, ShareGPT, Alpaca and prompt/completion.
What is not kept stands in rejects.jsonl with its place and its reason. The same files, in the same order, give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:  # launched as a script: the repository, not this folder, belongs on the import path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data_prep import text_checks, text_sources
from data_prep.manifest import REJECTS, SUMMARY, TRAIN, VAL
from data_prep.text_shapes import SHAPES, Row, normalise, shape_of
from data_prep.text_sources import Found, Source
from finetune import files
from finetune.errors import UserError, exit_code

MADE_BY = "data_prep text"
TRAINS, VALIDATES, REJECTED = range(3)
NUMBERS = re.compile(r"\d+")
SHOWN_REASONS = 12


def main(argv: list[str]) -> int:
    """The verb. Returns 0 if there is something to train on."""
    return exit_code(_text, argv)


def parser() -> argparse.ArgumentParser:
    """The options, for `--help` and for tests."""
    options = argparse.ArgumentParser(prog="data_prep text", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("sources", type=Path, nargs="+", help="files and folders of conversations")
    options.add_argument("--out", type=Path, required=True, help=f"folder for {TRAIN}, {VAL}, {REJECTS}, {SUMMARY}")
    options.add_argument("--val-share", type=float, default=0.02, help="part of the conversations to validate on (default %(default)s)")
    options.add_argument("--shape", choices=list(SHAPES), help="read every row as this, where its keys fit several shapes")
    return options


@dataclass
class Tally:
    """What has become of the rows so far."""

    kinds: bytearray = field(default_factory=bytearray)
    """One byte a row, in the order of reading."""
    rejects: list[dict[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    tidied: int = 0
    first_places: dict[bytes, str] = field(default_factory=dict)
    """Digest of each kept row → where it stands."""


def _text(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if not 0 <= options.val_share < 1:
        raise UserError(f"--val-share {options.val_share}: a part of the whole is expected, from 0 up to but not including 1")
    sources = text_sources.find(options.sources)
    _check_target(options.out)
    summary = write(sources, options.out, options.shape, options.val_share)
    print(told(summary))
    print(f"next: accelerate launch finetune/train.py --recipe llm_sft --model.source Qwen/Qwen3-1.7B --data.train {options.out / TRAIN}")
    return 0


def _check_target(out: Path) -> None:
    """Only what this verb has made is replaced."""
    if out.exists() and not _is_ours(out):
        raise UserError(f"--out {out} exists and was not made by {MADE_BY}; choose another folder, or remove that one")


def _is_ours(out: Path) -> bool:
    try:
        return bool(json.loads((out / SUMMARY).read_text())["made_by"] == MADE_BY)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write(sources: list[Source], out: Path, shape: str | None, val_share: float) -> dict[str, Any]:
    """Fill a temporary folder and give it its name by one rename. Returns the summary; raises `UserError` if nothing was kept."""
    files.make_folder(out.parent)
    files.sweep(out.parent, out.name)
    temporary, tally = files.fresh_folder(out.parent, out.name), Tally()
    try:
        trained = files.write_jsonl(temporary / TRAIN, _training_rows(sources, shape, val_share, tally))
        validated = tally.kinds.count(VALIDATES)
        if validated:
            files.write_jsonl(temporary / VAL, _validation_rows(sources, shape, tally))
        files.write_jsonl(temporary / REJECTS, tally.rejects)
        summary = _summary(sources, tally, trained, validated, val_share)
        files.write_json(temporary / SUMMARY, summary)
        if not trained:
            raise UserError(f"nothing to train on: of {summary['read']} rows, {_counted(tally.reasons) or 'none was there'}")
        if out.exists():
            files.discard(out)
        files.commit_folder(temporary, out)
    except BaseException:
        files.discard(temporary)
        raise
    return summary


def _training_rows(sources: list[Source], shape: str | None, val_share: float, tally: Tally) -> Iterator[Row]:
    """Rows to train on; what becomes of every other one is noted on the way, so that memory holds digests and no texts."""
    for source in sources:
        before = len(tally.kinds), tally.kinds.count(REJECTED)
        for found in text_sources.rows(source):
            kind, row = _judge(found, shape, val_share, tally)
            tally.kinds.append(kind)
            if row is not None and kind == TRAINS:
                yield row
        _check_shapes_known(source, tally, len(tally.kinds) - before[0], tally.kinds.count(REJECTED) - before[1])


def _check_shapes_known(source: Source, tally: Tally, read: int, rejected: int) -> None:
    """A file of which no row has a known shape is another file than was meant."""
    last = tally.rejects[-1]["reason"] if tally.rejects else ""
    if read and read == rejected and last.startswith(("no known shape", "more than one known shape")):
        raise UserError(f"{source.path}: its rows have {last}")


def _judge(found: Found, shape: str | None, val_share: float, tally: Tally) -> tuple[int, Row | None]:
    try:
        row, kind, tidied = _conversation(found, shape)
        content = _digest(row)
        if (first := tally.first_places.setdefault(content, found.place)) != found.place:
            raise UserError(f"the same as {first}")
    except UserError as error:
        return _reject(found.place, str(error), tally), None
    tally.shapes[kind] += 1
    tally.tidied += tidied
    return (VALIDATES if _share_of(_opening(row)) < val_share else TRAINS), {**row, "source": found.place}


def _conversation(found: Found, shape: str | None) -> tuple[Row, str, bool]:
    """The row in the one shape, checked; which shape it had; whether it was tidied."""
    if found.row is None:
        raise UserError(found.problem)
    kind = shape or shape_of(found.row)
    row = normalise(found.row, kind)
    tidied = text_checks.tidy(row)
    text_checks.check(row)
    return row, kind, tidied


def _reject(place: str, reason: str, tally: Tally) -> int:
    tally.rejects.append({"source": place, "reason": reason})
    tally.reasons[_group_of(reason)] += 1
    return REJECTED


def _group_of(reason: str) -> str:
    """A reason without what differs from row to row."""
    return "the same as another" if reason.startswith("the same as ") else NUMBERS.sub("N", reason.partition("; its keys")[0])


def _digest(row: Row) -> bytes:
    return hashlib.sha256(json.dumps(row, sort_keys=True, ensure_ascii=False).encode()).digest()[:16]


def _opening(row: Row) -> Any:
    """How a conversation begins, up to the first question: those that begin alike go the same way, or validation would know answers."""
    turns = row.get("messages") or row["prompt"]
    if isinstance(turns, str):
        return turns
    return next((turn.get("content") for turn in turns if turn["role"] == "user"), turns[0].get("content"))


def _share_of(opening: Any) -> float:
    """A number from 0 to 1 that depends on nothing else, so that added rows move no other to the other side."""
    return int.from_bytes(hashlib.sha256(json.dumps(opening).encode()).digest()[:7], "big") / 2**56


def _validation_rows(sources: list[Source], shape: str | None, tally: Tally) -> Iterator[Row]:
    """A second reading, which costs time and no memory."""
    everything = (found for source in sources for found in text_sources.rows(source))
    for kind, found in zip(tally.kinds, everything, strict=True):
        if kind == VALIDATES:
            yield {**_conversation(found, shape)[0], "source": found.place}


def _summary(sources: list[Source], tally: Tally, trained: int, validated: int, val_share: float) -> dict[str, Any]:
    return {
        "made_by": MADE_BY,
        "sources": [source.name for source in sources],
        "read": len(tally.kinds),
        "train": trained,
        "val": validated,
        "rejected": len(tally.rejects),
        "val_share": val_share,
        "shapes": dict(sorted(tally.shapes.items())),
        "answers_without_leading_line_breaks": tally.tidied,
        "reasons": dict(tally.reasons.most_common()),
    }


def told(summary: dict[str, Any]) -> str:
    """The summary for people."""
    lines = [
        f"{summary['read']:,} rows read ({_counted(summary['shapes'])}): {summary['train']:,} to train on, "
        f"{summary['val']:,} to validate on, {summary['rejected']:,} rejected"
    ]
    reasons = list(summary["reasons"].items())
    lines += [f"  rejected {count:,}: {reason}" for reason, count in reasons[:SHOWN_REASONS]]
    if len(reasons) > SHOWN_REASONS:
        lines.append(f"  and {len(reasons) - SHOWN_REASONS} reasons more; each row's own stands in {REJECTS}")
    if summary["answers_without_leading_line_breaks"]:
        lines.append(f"  line breaks taken off the beginning of answers in {summary['answers_without_leading_line_breaks']:,} rows")
    if summary["val_share"] and not summary["val"]:
        lines.append(f"  no row fell into the {summary['val_share']:.0%} to validate on, so there is no {VAL}; give a larger --val-share")
    return "\n".join(lines)


def _counted(counts: Any) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
