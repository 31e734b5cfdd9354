"""Codes of the speech tokenizer into the rows of a dataset.

  python -m data_prep codes data/me --model Qwen/Qwen3-TTS-12Hz-1.7B-Base
  python -m data_prep codes official.jsonl --model Qwen/Qwen3-TTS-12Hz-1.7B-Base --speaker me

Takes what `data_prep voice` made, and files of the official script whose clips lie under their folder (`data_prep export --root` brings
others into one place). Codes are kept by the content of clip and tokenizer: run it again after anything, and only what is new is encoded.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # launched as a script: the repository, not this folder, belongs on the import path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from data_prep import encoding, manifest, workers
from data_prep.audio import MASTER_RATE
from data_prep.codec import SAMPLES_PER_FRAME, codec_digest, find_codec, frames_of
from data_prep.encoding import STORE, Clip
from data_prep.formats import AudioError
from data_prep.lines import DATASET, manifests_of
from data_prep.manifest import REJECTS, TRAIN, Reject, Row
from data_prep.pool import Stop, tell_stopped
from data_prep.sounds import Sound, listen_to_all
from finetune import files, shipped
from finetune.errors import UserError, exit_code


def main(argv: list[str]) -> int:
    """The verb."""
    return exit_code(_codes, argv)


def parser() -> argparse.ArgumentParser:
    """The options, for `--help` and for tests."""
    options = argparse.ArgumentParser(prog="data_prep codes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("dataset", type=Path, help=DATASET)
    options.add_argument("--model", required=True, help="Qwen3-TTS 12 Hz model: a folder, a name on the model hub, or codec-demo")
    options.add_argument("--speaker", metavar="NAME", help="who speaks in rows that name nobody (files of the official script)")
    workers.ask(options, "the tokenizer")
    options.add_argument("--batch-seconds", type=float, default=60.0, help="sound encoded at a time, bounds memory (default %(default)s)")
    return options


@dataclass(frozen=True)
class Wanted:
    """One row that wants its codes."""

    row: Row
    manifest: Path
    clip: Clip


@dataclass(frozen=True)
class Bad:
    """One row that has to go, and why."""

    row: Row
    manifest: Path
    reason: str
    detail: str


def _codes(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if not options.batch_seconds > 0:
        raise UserError(f"--batch-seconds {options.batch_seconds}: seconds above 0 are expected")
    workers.check(options)
    manifests = manifests_of(options.dataset)
    folder = manifests[0].parent
    rows = list(_rows(manifests, folder, options.speaker))
    codec = find_codec(options.model)
    owner = files.own(folder)
    try:
        with workers.found(options, folder, [folder, codec]) as hands, Stop() as stop:
            return _fill(rows, folder, encoding.Setup(folder / STORE, codec, options.batch_seconds, hands), options, stop)
    except KeyboardInterrupt:
        return tell_stopped("at once")
    finally:
        os.close(owner)


def _fill(rows: list[tuple[Path, Row]], folder: Path, setup: encoding.Setup, options: argparse.Namespace, stop: Stop) -> int:
    """Encode what is missing, then give each row its codes."""
    store, digest = setup.store, codec_digest(setup.codec)
    for place in (folder, *store.glob("*")):
        files.sweep(place)
    looked = _look(rows, digest)
    wanted, bad = [one for one in looked if isinstance(one, Wanted)], [one for one in looked if isinstance(one, Bad)]
    missing = list({one.clip.key: one.clip for one in wanted if not encoding.stored_at(store, one.clip.key).is_file()}.values())
    if stop.asked:
        return tell_stopped("no clip was encoded yet")
    failed = encoding.encode_all(missing, setup, stop)
    left = [clip for clip in missing if clip.key not in failed and not encoding.stored_at(store, clip.key).is_file()]
    if left:
        return tell_stopped(f"{len(missing) - len(left)} of {len(missing)} clips are encoded")
    bad += [Bad(one.row, one.manifest, "codec_error", failed[one.clip.key]) for one in wanted if one.clip.key in failed]
    wanted = [one for one in wanted if one.clip.key not in failed]
    if not wanted:
        raise UserError(f"no clip of {options.dataset} could be encoded, and nothing was changed; first: {_first(bad)}")
    _rewrite(folder, wanted, bad)
    _report(options, folder, wanted, bad, digest, encoded=len(missing) - len(failed))
    return 0


def _rows(manifests: list[Path], folder: Path, speaker: str | None) -> Iterator[tuple[Path, Row]]:
    """Every row with the manifest it belongs to, without codes; those that failed last time are tried again."""
    for path in manifests:
        for row in manifest.read_rows(path, speaker):
            yield path, row.model_copy(update={"audio_codes": None})
    for reject in _rejects(folder):
        if _is_of(reject, manifests):
            yield folder / reject["manifest"], Row.model_validate(reject["row"])


def _rejects(folder: Path) -> list[dict[str, Any]]:
    return [reject for _, reject in manifest.read_lines(folder / REJECTS)] if (folder / REJECTS).is_file() else []


def _is_of(reject: dict[str, Any], manifests: list[Path]) -> bool:
    """Whether an earlier run of this verb took it out of one of these files."""
    return reject.get("stage") == "codes" and reject.get("manifest") in {path.name for path in manifests}


def _look(rows: list[tuple[Path, Row]], codec: str) -> list[Wanted | Bad]:
    """Every clip is decoded once here, so that a bad one does not stop the tokenizer in its middle."""
    paths = [manifest.clip_path(path, row) for path, row in rows]
    heard = listen_to_all(paths)
    return [_judged(row, path, clip, heard[clip], codec) for (path, row), clip in zip(rows, paths, strict=True)]


def _judged(row: Row, path: Path, clip: Path, sound: Sound | AudioError, codec: str) -> Wanted | Bad:
    if isinstance(sound, AudioError):
        return Bad(row, path, sound.reason, sound.detail)
    return Wanted(row, path, Clip(clip, encoding.key_of(sound.digest, codec), sound.length))


def _rewrite(folder: Path, wanted: list[Wanted], bad: list[Bad]) -> None:
    """Rejects first: a kill in between leaves a row in two files, never in none."""
    manifests = sorted({one.manifest for one in wanted} | {one.manifest for one in bad})
    before = _rejects(folder)
    kept = [Reject.model_validate(reject) for reject in before if not _is_of(reject, manifests)]
    if bad or before:
        manifest.write(folder / REJECTS, [*kept, *(_reject(one) for one in bad)])
    for path in manifests:
        manifest.write(path, (_with_codes(one, folder / STORE) for one in wanted if one.manifest == path))


def _reject(bad: Bad) -> Reject:
    """Holds the whole row, which comes back when its clip does."""
    return Reject.model_validate(
        {
            "source": bad.row.source or bad.row.audio,
            "start": bad.row.start or 0.0,
            "end": bad.row.end or 0.0,
            "stage": "codes",
            "reasons": [bad.reason],
            "detail": bad.detail,
            "manifest": bad.manifest.name,
            "row": bad.row.model_dump(exclude_none=True),
        }
    )


def _with_codes(wanted: Wanted, store: Path) -> Row:
    return wanted.row.model_copy(update={"audio_codes": encoding.stored(store, wanted.clip.key).tolist()})


def _report(options: argparse.Namespace, folder: Path, wanted: list[Wanted], bad: list[Bad], digest: str, encoded: int) -> None:
    frames = sum(frames_of(one.clip.samples) for one in wanted)
    summary = {
        "model": options.model,
        "codec_digest": digest,
        "clips": len(wanted),
        "frames": frames,
        "seconds": round(frames * SAMPLES_PER_FRAME / MASTER_RATE, 2),
        "rejected": len(bad),
        **shipped.warning_entry(options.model),
    }
    files.write_json(folder / STORE / manifest.SUMMARY, summary)
    files.write_json(folder / STORE / manifest.RUN, {"encoded": encoded, "reused": len(wanted) - encoded})
    for one in bad:
        print(f"rejected {one.row.audio}: {one.reason}: {one.detail}", file=sys.stderr)
    print(f"{len(wanted)} clips, {frames} frames, {summary['seconds']} s; {encoded} encoded now, {len(bad)} rejected")
    train = options.dataset / TRAIN if options.dataset.is_dir() else options.dataset
    print(f"next: accelerate launch finetune/train.py --recipe voice_clone --data.train {train}")


def _first(bad: list[Bad]) -> str:
    return f"{bad[0].row.audio}: {bad[0].reason}: {bad[0].detail}" if bad else "the manifests are empty"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
