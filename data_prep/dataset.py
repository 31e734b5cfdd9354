"""The files of a data set, in the order in which they may appear: a reader never finds a manifest that names a missing clip."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from data_prep import account, judge, manifest, references
from data_prep.audio import MASTER_RATE, Samples, read
from data_prep.clips import Clip
from data_prep.judge import Judged
from data_prep.manifest import Reject, Row
from data_prep.recording import Recording
from data_prep.split import GUARD_SECONDS, assign
from finetune import files

STAGES = ".stages"
"""Folder of what was heard."""


@contextlib.contextmanager
def owned(out: Path) -> Iterator[None]:
    """The folder is ours alone for a while, and free of what a killed run left. Raises `UserError` if another run has it."""
    descriptor = files.own(out)
    try:
        for folder in (out, out / references.FOLDER, *out.glob("clips/*"), *out.glob(f"{STAGES}/*")):
            files.sweep(folder)
        yield
    finally:
        os.close(descriptor)


def samples(out: Path, clip: Clip) -> Samples:
    """Of a clip's file."""
    assert clip.audio, "a clip without text has no file"
    return read(out / clip.audio, MASTER_RATE).samples


def write(out: Path, recordings: list[Recording], judged: list[Judged], val_share: float, settings: dict[str, object]) -> account.Summary:
    """References, manifests and summary, checked to account for every sample; then clips that no manifest names are removed."""
    rows, between = assign(judge.kept(judged), val_share)
    rejects = sorted([*judge.rejected(judged, recordings), *(_left_out(row) for row in between)], key=_place)
    rows = [row.model_copy(update={"asr": _limited_hearing(settings)}) for row in sorted(rows, key=_place)]
    summary = account.summarise(account.accounts(recordings, rows, rejects), rows, rejects, settings)
    references.write(out, rows)
    manifest.write(out / manifest.REJECTS, rejects)
    manifest.write_unless_same(out / manifest.VAL, [row for row in rows if row.split == "val"])
    manifest.write_unless_same(out / manifest.TRAIN, [row for row in rows if row.split == "train"])
    files.write_json(out / manifest.SUMMARY, summary.model_dump())
    _remove_unnamed(out, {one.clip.audio for one in judged})
    return summary


def _limited_hearing(settings: dict[str, object]) -> dict[str, str] | None:
    """A text by the demo's Whisper carries its origin along, wherever its row goes."""
    text = settings.get("text")
    return {"model": str(text["name"]), "scope": str(text["scope"])} if isinstance(text, dict) and "scope" in text else None


def _left_out(row: Row) -> Reject:
    """A good clip that would tell training what validation asks."""
    detail = f"less than {GUARD_SECONDS:g} s before the clips that validate, in the speaker's only recording"
    fields = row.model_dump(exclude={"split", "ref_audio", "duration", "quality"})
    return Reject(stage="clip", reasons=["guard"], detail=detail, quality=row.quality, **fields)


def _place(entry: Row | Reject) -> tuple[str, float]:
    return entry.source or "", entry.start or 0.0


def _remove_unnamed(out: Path, named: set[str | None]) -> None:
    """Clips that earlier parameters or recordings left."""
    for path in out.glob("clips/*/*.flac"):
        if path.relative_to(out).as_posix() not in named:
            files.discard(path)
