"""Conversations in, a training set out.

  python -m data_prep text chats.jsonl more/ --out data/chats
  accelerate launch finetune/train.py --recipe llm_sft --data.train data/chats/train.jsonl

Reads .jsonl, .json, .csv, .tsv (each also with .gz), .parquet and folders that `datasets` saved, in the shapes messages, ShareGPT, Alpaca
and prompt/completion. What is not kept stands in rejects.jsonl with its place and its reason, and everything else that is not used (files
of other kinds, keys of rows) is counted. The same files, in the same order, give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

if not __package__:  # launched as a script: the repository, not this folder, belongs on the import path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data_prep import text_account, text_checks, text_rows, text_sources, text_split
from data_prep.manifest import REJECTS, SUMMARY, TRAIN, VAL
from data_prep.text_account import MADE_BY, REJECTED, TRAINS, VALIDATES, Tally
from data_prep.text_shapes import SHAPES, Row, ShapeError, left_out, normalise, shape_of
from data_prep.text_sources import Found, Gathered, Source
from data_prep.text_split import Validates
from finetune import files, strict_json
from finetune.errors import UserError, exit_code
from finetune.strict_json import one_line

CHANGED = "the files changed while they were read; run the same command again"


@dataclass(frozen=True)
class Wanted:
    """How rows are read, and how many are kept apart."""

    shape: str | None = None
    """Of every row; None if its keys tell."""
    val_share: float = 0.02
    val_rows: int | None = None
    """At most; instead of a share."""


def main(argv: list[str]) -> int:
    """The verb. Returns 0 if there is something to train on."""
    return exit_code(_text, argv)


def parser() -> argparse.ArgumentParser:
    """The options, for `--help` and for tests."""
    options = argparse.ArgumentParser(prog="data_prep text", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("sources", type=Path, nargs="+", help="files and folders of conversations")
    options.add_argument("--out", type=Path, required=True, help=f"folder for {TRAIN}, {VAL}, {REJECTS}, {SUMMARY}")
    apart = options.add_mutually_exclusive_group()
    apart.add_argument(
        "--val-share", type=float, default=Wanted.val_share, help="part of the conversations to validate on (default %(default)s)"
    )
    apart.add_argument("--val-rows", type=int, help="or how many of them at most; those that begin alike stay together")
    options.add_argument("--shape", choices=list(SHAPES), help="read every row as this, where its keys fit several shapes")
    return options


def _text(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    _check_amounts(options)
    gathered = text_sources.find(options.sources)
    _check_target(options.out, [*options.sources, *(source.path for source in gathered.sources)])
    summary = write(gathered, options.out, Wanted(options.shape, options.val_share, options.val_rows))
    print(text_account.told(summary))
    print(f"next: accelerate launch finetune/train.py --recipe llm_sft --model.source Qwen/Qwen3-1.7B {_data(options.out, summary)}")
    return 0


def _data(out: Path, summary: dict[str, Any]) -> str:
    return f"--data.train {out / TRAIN}" + (f" --data.val {out / VAL}" if summary["val"] else "")


def _check_amounts(options: argparse.Namespace) -> None:
    if not 0 <= options.val_share < 1:
        raise UserError(f"--val-share {options.val_share}: a part of the whole is expected, from 0 up to but not including 1")
    if options.val_rows is not None and options.val_rows < 0:
        raise UserError(f"--val-rows {options.val_rows}: a number of rows is expected, from 0")


def _check_target(out: Path, sources: list[Path]) -> None:
    """Only what this verb has made is replaced, and never with its own sources; nor does one run write what the next would read."""
    target = Path(os.path.realpath(out))
    for source in sources:
        read = Path(os.path.realpath(source))
        if read.is_relative_to(target):
            raise UserError(f"--out {out} would replace what is read, {source}; choose another folder")
        if target.is_relative_to(read):
            raise UserError(f"--out {out} lies in {source}, so that the next run would read what this one wrote; choose a folder elsewhere")
    if os.path.lexists(target) and not _is_ours(target):
        raise UserError(f"--out {out} exists and was not made by {MADE_BY}; choose another folder, or remove that one")


def _is_ours(out: Path) -> bool:
    """Made by this verb, or empty."""
    try:
        return not any(out.iterdir()) or bool(strict_json.loads((out / SUMMARY).read_bytes())["made_by"] == MADE_BY)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write(gathered: Gathered, out: Path, wanted: Wanted) -> dict[str, Any]:
    """Fill a temporary folder, which gets its name by one rename. Returns the summary; raises `UserError` if nothing trains."""
    target, tally = Path(os.path.realpath(out)), Tally()
    temporary = _fresh(target)
    try:
        _fill(temporary, gathered.sources, wanted, tally)
        summary = text_account.summary(tally, gathered.passed_over, wanted.val_share, wanted.val_rows)
        _check_trainable(summary)
        files.write_json(temporary / SUMMARY, summary)
        if target.exists():
            files.discard(target)
        files.commit_folder(temporary, target)
    except BaseException:
        files.discard(temporary)
        raise
    return summary


def _fresh(target: Path) -> Path:
    """A temporary folder beside the target, after those that killed runs left there are removed."""
    try:
        files.make_folder(target.parent)
        files.sweep(target.parent, target.name)
        return files.fresh_folder(target.parent, target.name)
    except OSError as error:
        raise UserError(f"--out {target} cannot be made ({one_line(error)}); choose another folder") from None


def _fill(folder: Path, sources: list[Source], wanted: Wanted, tally: Tally) -> None:
    files.write_jsonl(folder / TRAIN, _training_rows(sources, wanted.shape, _validates(sources, wanted), tally))
    if VALIDATES in tally.kinds:
        files.write_jsonl(folder / VAL, _validation_rows(sources, wanted.shape, tally))
    files.write_jsonl(folder / REJECTS, tally.rejects)


def _check_trainable(summary: dict[str, Any]) -> None:
    if summary["train"]:
        return
    if summary["val"]:
        raise UserError(f"nothing is left to train on: all {summary['val']} rows would validate; give a smaller --val-share or --val-rows")
    raise UserError(f"nothing to train on: of {summary['read']} rows, {text_account.why_none(summary)}")


def _validates(sources: list[Source], wanted: Wanted) -> Validates:
    """Which conversations are kept apart. A number of rows takes a reading of its own: the share of each must be known."""
    if wanted.val_rows is None:
        return text_split.below(wanted.val_share)
    tally = Tally()  # of this reading alone
    kept = (row for source in sources for _, row in _judged(source, wanted.shape, tally) if row)
    return text_split.smallest(map(text_split.share_of, kept), wanted.val_rows)


def _training_rows(sources: list[Source], shape: str | None, validates: Validates, tally: Tally) -> Iterator[Row]:
    """Rows to train on; what becomes of every other one is noted on the way, so that memory holds digests and no texts."""
    for source in sources:
        for place, row in _judged(source, shape, tally):
            kind = REJECTED if row is None else VALIDATES if validates(text_split.share_of(row)) else TRAINS
            tally.kinds.append(kind)
            if row is not None and kind == TRAINS:
                yield {**row, "source": place}


def _validation_rows(sources: list[Source], shape: str | None, tally: Tally) -> Iterator[Row]:
    """A second reading, which costs time and no memory. Raises `UserError` if it finds other rows than the first."""
    again = (found for source in sources for found in text_rows.rows(source))
    for kind, found in zip_longest(tally.kinds, again):
        if kind is None or found is None:
            raise UserError(CHANGED)
        if kind == VALIDATES:
            yield {**_same_again(found, shape, tally), "source": found.place}


def _same_again(found: Found, shape: str | None, tally: Tally) -> Row:
    try:
        row, _, _ = _conversation(found, shape)
    except UserError:
        raise UserError(CHANGED) from None
    if tally.first_place(row, found.place) != found.place:
        raise UserError(CHANGED)
    return row


def _judged(source: Source, shape: str | None, tally: Tally) -> Iterator[tuple[str, Row | None]]:
    """Place of each row, and the row if it is kept. Raises `UserError` for a source of which no row has a known shape."""
    tally.by_source[source.name], strange, unknown = 0, 0, ""
    for found in text_rows.rows(source):
        tally.by_source[source.name] += 1
        row = None
        try:
            row = _kept(found, shape, tally)
        except UserError as error:
            tally.reject(found.place, str(error))
            unknown = str(error) if isinstance(error, ShapeError) else unknown
            strange += isinstance(error, ShapeError) or found.row is None
        yield found.place, row
    if unknown and strange == tally.by_source[source.name]:
        raise UserError(f"{source.path}: its rows have {one_line(unknown)}. To leave this file out, name those to read")


def _kept(found: Found, shape: str | None, tally: Tally) -> Row:
    """The row as it is written. Raises `UserError` with the reason why it is not."""
    row, kind, tidied = _conversation(found, shape)
    if first := tally.first_place(row, found.place):
        raise UserError(f"the same as {first}")
    tally.keep(kind, left_out(found.row or {}, kind), tidied)
    return row


def _conversation(found: Found, shape: str | None) -> tuple[Row, str, bool]:
    """The row in the one shape, checked; which shape it had; whether it was tidied."""
    if found.row is None:
        raise UserError(found.problem)
    kind = shape or shape_of(found.row)
    row = normalise(found.row, kind)
    tidied = text_checks.tidy(row)
    text_checks.check(row)
    return row, kind, tidied


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
