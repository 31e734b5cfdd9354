"""Write the files of a dataset in a safe order: a reader never finds a manifest that names a missing clip."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from overtone.data_prep import manifest
from overtone.data_prep.dataset import duration_accounting, reference_clips
from overtone.data_prep.dataset.train_val_split import GUARD_SECONDS, assign_splits
from overtone.data_prep.manifest import ManifestRow, Reject
from overtone.data_prep.pipeline import clip_selection
from overtone.data_prep.pipeline.clip_selection import JudgedClip
from overtone.data_prep.pipeline.recording_results import PreparedRecording
from overtone.data_prep.pipeline.user_notices import Notice
from overtone.data_prep.recordings.removed_text import RemovedKind
from overtone.finetune.storage import files

STAGES = ".stages"
"""Folder of cached stage results."""


@contextlib.contextmanager
def lock_dataset(out: Path) -> Iterator[None]:
    """Lock the dataset folder and remove leftovers of killed runs. Raises `UserError` if another run holds the lock."""
    descriptor = files.lock_folder(out)
    try:
        for folder in (out, out / reference_clips.FOLDER, *out.glob("clips/*"), *out.glob(f"{STAGES}/*")):
            files.remove_unfinished(folder)
        yield
    finally:
        os.close(descriptor)


def write_dataset(
    out: Path,
    recordings: list[PreparedRecording],
    judged: list[JudgedClip],
    val_share: float,
    settings: dict[str, object],
    notices: Sequence[Notice],
    texts: Mapping[str, str],
    removed: Mapping[str, RemovedKind],
) -> duration_accounting.Summary:
    """Write references, manifests and summary, after checking that every sample is accounted for; then remove stale clip files.

    `texts`: recording → how its texts were verified. `removed`: what was left out of the transcripts, by kind.
    """
    takes = {one.clip.id: one.take for one in judged if one.take}
    damaged = {one.source.name for one in recordings if one.damage}
    rows, between = assign_splits(clip_selection.make_rows(judged), val_share, takes, damaged)
    rejects = sorted([*clip_selection.make_rejects(judged, recordings), *(_make_guard_reject(row) for row in between)], key=_make_sort_key)
    text = settings.get("text")  # only the demo Whisper has a scope, which is stored in every row that it wrote
    asr = {"model": str(text["name"]), "scope": str(text["scope"])} if isinstance(text, dict) and "scope" in text else None
    rows = [row.model_copy(update={"asr": asr}) for row in sorted(rows, key=_make_sort_key)]
    summary = duration_accounting.make_summary(
        duration_accounting.compute_all_durations(recordings, rows, rejects, notices, texts), rows, rejects, settings, notices
    ).model_copy(update={"removed_text": dict(removed)})
    reference_clips.write_references(out, rows)
    manifest.write_entries(out / manifest.REJECTS, rejects)
    manifest.write_rows_unless_same(out / manifest.VAL, [row for row in rows if row.split == "val"])
    manifest.write_rows_unless_same(out / manifest.TRAIN, [row for row in rows if row.split == "train"])
    files.write_json(out / manifest.SUMMARY, summary.model_dump())
    named = {one.clip.audio for one in judged}
    for path in out.glob("clips/*/*.flac"):
        if path.relative_to(out).as_posix() not in named:
            files.discard(path)  # of earlier parameters or recordings
    return summary


def _make_guard_reject(row: ManifestRow) -> Reject:
    """Reject row of a good clip that is too close to the validation clips."""
    detail = f"less than {GUARD_SECONDS:g} s from a validation clip of the same recording"
    fields = row.model_dump(exclude={"split", "ref_audio", "duration", "quality"})
    return Reject(stage="clip", reasons=["guard"], detail=detail, quality=row.quality, **fields)


def _make_sort_key(entry: ManifestRow | Reject) -> tuple[str, float]:
    return entry.source or "", entry.start or 0.0
