"""Which clips train and which validate, and each speaker's reference clip. The same clips always give the same answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from data_prep.manifest import Row

REFERENCE_SECONDS = 6.0
OVERSHOOT = 1.5
"""By how much whole recordings may exceed the share that validation should have."""


def assign(rows: list[Row], share: float) -> list[Row]:
    """Rows with `split` and `ref_audio` set. `share`: part of each speaker's seconds to validate on; 0 for none."""
    speakers = _groups(rows, lambda row: row.speaker or "")
    return [row for speaker in speakers.values() for row in _with_reference(_split(speaker, share))]


def _split(rows: list[Row], share: float) -> list[Row]:
    """Whole recordings, so that no room and no story is on both sides; a block at the end of one where no recording is small enough."""
    wanted = share * _seconds(rows)
    chosen = _recordings(rows, wanted) or _tail(rows, wanted)
    return [row.model_copy(update={"split": "val" if row.id in chosen else "train"}) for row in rows]


def _recordings(rows: list[Row], wanted: float) -> set[str | None]:
    """Clips of recordings, in the order of their content's digest, as long as they fit, and never all."""
    recordings = sorted(_groups(rows, _recording).items())
    chosen: list[Row] = []
    for _, clips in recordings:
        if _seconds(chosen) + _seconds(clips) <= OVERSHOOT * wanted and len(chosen) + len(clips) < len(rows):
            chosen += clips
    return {row.id for row in chosen}


def _tail(rows: list[Row], wanted: float) -> set[str | None]:
    """The last clips of the first recording by digest: at least one if any is wanted, and never all."""
    if wanted <= 0 or len(rows) < 2:
        return set()
    _, clips = min(_groups(rows, _recording).items(), key=lambda item: (len(item[1]) < 2, item[0]))
    clips = sorted(clips, key=lambda row: row.start or 0.0)
    count = 1
    while count + 1 < len(clips) and _seconds(clips[-count - 1 :]) <= wanted:
        count += 1
    return {row.id for row in clips[-count:]}


def _with_reference(rows: list[Row]) -> list[Row]:
    """One clip of the training split for all rows of a speaker: about six seconds, then the cleanest."""
    candidates = [row for row in rows if row.split == "train"] or rows
    best = min(candidates, key=lambda row: (abs((row.duration or 0.0) - REFERENCE_SECONDS) > 3.0, -_clean(row), row.id or ""))
    return [row.model_copy(update={"ref_audio": best.audio}) for row in rows]


def _clean(row: Row) -> float:
    return row.quality.snr_db or 0.0 if row.quality else 0.0


def _recording(row: Row) -> str:
    """The digest of the recording: ids begin with it."""
    return (row.id or "").split("_")[0]


def _seconds(rows: list[Row]) -> float:
    return sum(row.duration or 0.0 for row in rows)


def _groups(rows: list[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    return {name: list(group) for name, group in groupby(sorted(rows, key=key), key)}
