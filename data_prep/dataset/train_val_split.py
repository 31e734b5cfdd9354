"""Deterministic train/validation split of clips, by whole recordings where possible."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from data_prep.dataset.reference_clips import make_reference_path
from data_prep.manifest import ManifestRow

OVERSHOOT = 1.5
"""Factor by which whole recordings may exceed the requested validation share."""
GUARD_SECONDS = 5.0
"""Guard interval between training and validation clips of one recording: neighbouring sentences share content."""
GUARD_SHARE = 0.05
"""Maximum share of a speaker's speech lost to the guard interval: of one minute, five seconds are too much."""


def assign_splits(rows: list[ManifestRow], share: float) -> tuple[list[ManifestRow], list[ManifestRow]]:
    """Rows with `split` and `ref_audio` set, and rows dropped because they are too close to the validation clips.

    `share`: validation share of each speaker's seconds; 0 for none.
    """
    rows = [row.model_copy(update={"ref_audio": make_reference_path(row.speaker or "")}) for row in rows]
    divided = [row for speaker in _group_rows(rows, lambda row: row.speaker or "").values() for row in _split_speaker(speaker, share)]
    return [row for row in divided if row.split], [row for row in divided if not row.split]


def _split_speaker(rows: list[ManifestRow], share: float) -> list[ManifestRow]:
    """Choose whole recordings, so that no room or story is in both splits; or a block at the end of one if none is small enough."""
    wanted = share * _sum_seconds(rows)
    chosen = _choose_recordings(rows, wanted) or _choose_tail(rows, wanted)
    between = _find_guard_clips(rows, chosen) if len(_group_rows(rows, _read_recording_digest)) == 1 else set()
    splits = {row.id: "val" if row.id in chosen else None if row.id in between else "train" for row in rows}
    return [row.model_copy(update={"split": splits[row.id]}) for row in rows]


def _choose_recordings(rows: list[ManifestRow], wanted: float) -> set[str | None]:
    """Ids of clips of whole recordings, in the order of their digests, as long as they fit; never all clips."""
    recordings = sorted(_group_rows(rows, _read_recording_digest).items())
    chosen: list[ManifestRow] = []
    for _, clips in recordings:
        if _sum_seconds(chosen) + _sum_seconds(clips) <= OVERSHOOT * wanted and len(chosen) + len(clips) < len(rows):
            chosen += clips
    return {row.id for row in chosen}


def _choose_tail(rows: list[ManifestRow], wanted: float) -> set[str | None]:
    """Ids of the last clips of the first recording by digest: at least one if any is wanted, never all."""
    if wanted <= 0 or len(rows) < 2:
        return set()
    _, clips = min(_group_rows(rows, _read_recording_digest).items(), key=lambda item: (len(item[1]) < 2, item[0]))
    clips = sorted(clips, key=lambda row: row.start or 0.0)
    count = 1
    while count + 1 < len(clips) and _sum_seconds(clips[-count - 1 :]) <= wanted:
        count += 1
    return {row.id for row in clips[-count:]}


def _find_guard_clips(rows: list[ManifestRow], chosen: set[str | None]) -> set[str | None]:
    """Ids of clips that end less than five seconds before the validation block; none if they exceed the allowed share."""
    begin = min((row.start or 0.0 for row in rows if row.id in chosen), default=float("inf"))
    near = [row for row in rows if row.id not in chosen and (row.end or 0.0) > begin - GUARD_SECONDS]
    return {row.id for row in near} if _sum_seconds(near) <= GUARD_SHARE * _sum_seconds(rows) else set()


def _read_recording_digest(row: ManifestRow) -> str:
    """Digest prefix of the recording, with which ids begin."""
    return (row.id or "").split("_")[0]


def _sum_seconds(rows: list[ManifestRow]) -> float:
    return sum(row.duration or 0.0 for row in rows)


def _group_rows(rows: list[ManifestRow], key: Callable[[ManifestRow], str]) -> dict[str, list[ManifestRow]]:
    return {name: list(group) for name, group in groupby(sorted(rows, key=key), key)}
