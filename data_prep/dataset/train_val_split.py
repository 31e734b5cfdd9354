"""Deterministic train/validation split of clips, by whole recordings where possible."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from data_prep.dataset.reference_clips import path_of
from data_prep.manifest import Row

OVERSHOOT = 1.5
"""Factor by which whole recordings may exceed the requested validation share."""
GUARD_SECONDS = 5.0
"""Guard interval between training and validation clips of one recording: neighbouring sentences share content."""
GUARD_SHARE = 0.05
"""Maximum share of a speaker's speech lost to the guard interval: of one minute, five seconds are too much."""


def assign_splits(rows: list[Row], share: float) -> tuple[list[Row], list[Row]]:
    """Rows with `split` and `ref_audio` set, and rows dropped because they are too close to the validation clips.

    `share`: validation share of each speaker's seconds; 0 for none.
    """
    rows = [row.model_copy(update={"ref_audio": path_of(row.speaker or "")}) for row in rows]
    divided = [row for speaker in _groups(rows, lambda row: row.speaker or "").values() for row in _split(speaker, share)]
    return [row for row in divided if row.split], [row for row in divided if not row.split]


def _split(rows: list[Row], share: float) -> list[Row]:
    """Choose whole recordings, so that no room or story is in both splits; or a block at the end of one if none is small enough."""
    wanted = share * _seconds(rows)
    chosen = _recordings(rows, wanted) or _tail(rows, wanted)
    between = _guard(rows, chosen) if len(_groups(rows, _recording)) == 1 else set()
    splits = {row.id: "val" if row.id in chosen else None if row.id in between else "train" for row in rows}
    return [row.model_copy(update={"split": splits[row.id]}) for row in rows]


def _recordings(rows: list[Row], wanted: float) -> set[str | None]:
    """Ids of clips of whole recordings, in the order of their digests, as long as they fit; never all clips."""
    recordings = sorted(_groups(rows, _recording).items())
    chosen: list[Row] = []
    for _, clips in recordings:
        if _seconds(chosen) + _seconds(clips) <= OVERSHOOT * wanted and len(chosen) + len(clips) < len(rows):
            chosen += clips
    return {row.id for row in chosen}


def _tail(rows: list[Row], wanted: float) -> set[str | None]:
    """Ids of the last clips of the first recording by digest: at least one if any is wanted, never all."""
    if wanted <= 0 or len(rows) < 2:
        return set()
    _, clips = min(_groups(rows, _recording).items(), key=lambda item: (len(item[1]) < 2, item[0]))
    clips = sorted(clips, key=lambda row: row.start or 0.0)
    count = 1
    while count + 1 < len(clips) and _seconds(clips[-count - 1 :]) <= wanted:
        count += 1
    return {row.id for row in clips[-count:]}


def _guard(rows: list[Row], chosen: set[str | None]) -> set[str | None]:
    """Ids of clips that end less than five seconds before the validation block; none if they exceed the allowed share."""
    begin = min((row.start or 0.0 for row in rows if row.id in chosen), default=float("inf"))
    near = [row for row in rows if row.id not in chosen and (row.end or 0.0) > begin - GUARD_SECONDS]
    return {row.id for row in near} if _seconds(near) <= GUARD_SHARE * _seconds(rows) else set()


def _recording(row: Row) -> str:
    """Digest prefix of the recording, with which ids begin."""
    return (row.id or "").split("_")[0]


def _seconds(rows: list[Row]) -> float:
    return sum(row.duration or 0.0 for row in rows)


def _groups(rows: list[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    return {name: list(group) for name, group in groupby(sorted(rows, key=key), key)}
