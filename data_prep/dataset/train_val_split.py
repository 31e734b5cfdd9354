"""Deterministic train/validation split of clips: whole recordings where they are small, else the ends of several recordings.

No text and no take (clips with the same sound) is in both splits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import groupby

from overtone.data_prep.clips.duplicates import normalise_text
from overtone.data_prep.dataset.reference_clips import make_reference_path
from overtone.data_prep.manifest import ManifestRow

OVERSHOOT = 1.5
"""Factor by which whole recordings may exceed the requested validation share."""
LEAST_CLIPS, LEAST_SHARE = 10, 0.03
"""Minimum number of validation clips of a speaker: the larger of ten and 3 %. A loss over fewer clips is unreliable."""
MOST_SHARE = 0.125
"""That minimum takes at most this share of a speaker's clips: a tiny dataset is needed for training."""
GUARD_SECONDS = 5.0
"""Guard interval between training and validation clips of one recording: neighbouring sentences share content."""
GUARD_SHARE = 0.05
"""Maximum share of a speaker's speech lost to the guard interval: of one minute, five seconds are too much."""


def assign_splits(
    rows: list[ManifestRow], share: float, takes: Mapping[str, str] | None = None, damaged: Collection[str] = ()
) -> tuple[list[ManifestRow], list[ManifestRow]]:
    """Return the rows with `split` and `ref_audio` set, and rows dropped because they are too close to validation clips of their recording.

    `share`: validation share of each speaker's seconds; 0 for none. `takes`: clip id → id shared by clips with the same sound. `damaged`:
    names of recordings that validate only if there are no others.
    """
    rows = [row.model_copy(update={"ref_audio": make_reference_path(row.speaker or "")}) for row in rows]
    speakers = list(_group_rows(rows, lambda row: row.speaker or "").values()) if share > 0 else []
    related = _group_related(rows, takes or {})
    chosen = {identity for clips in speakers for identity in _choose_recordings(clips, share * _sum_seconds(clips), damaged)}
    chosen = _unite_related(chosen, related, speakers)
    for clips in speakers:
        chosen |= _choose_tails(clips, chosen, share * _sum_seconds(clips), related, damaged)
    for clips in speakers:
        chosen |= _choose_related(clips, chosen, related, {row.speaker: len(own) for own in speakers for row in own[:1]})
    between = {identity for clips in speakers for identity in _find_guard_clips(clips, chosen)}
    splits = {row.id: "val" if row.id in chosen else None if row.id in between else "train" for row in rows}
    divided = [row.model_copy(update={"split": splits[row.id]}) for row in rows]
    return [row for row in divided if row.split], [row for row in divided if not row.split]


def _group_related(rows: list[ManifestRow], takes: Mapping[str, str]) -> dict[str | None, list[ManifestRow]]:
    """Return clip id → all clips connected with it by the same words or the same sound, itself included."""
    groups: list[list[ManifestRow]] = []
    place: dict[str, int] = {}
    for row in rows:
        keys = [f"text {normalise_text(row.text) or row.id}", *([f"take {takes[row.id]}"] if row.id and row.id in takes else [])]
        met = sorted({place[key] for key in keys if key in place})
        target = met[0] if met else len(groups)
        if not met:
            groups.append([])
        for other in met[1:]:
            groups[target] += groups[other]
            groups[other] = []
            place |= {key: target for key, index in place.items() if index == other}
        groups[target].append(row)
        place |= dict.fromkeys(keys, target)
    return {row.id: group for group in groups for row in group}


def _choose_recordings(rows: list[ManifestRow], wanted: float, damaged: Collection[str]) -> set[str | None]:
    """Return the ids of clips of whole recordings, in the order of their digests, as long as they fit. It never chooses all clips, nor a
    damaged recording."""
    chosen: list[ManifestRow] = []
    for clips in _order_recordings(rows, damaged):
        fits = _sum_seconds(chosen) + _sum_seconds(clips) <= OVERSHOOT * wanted and len(chosen) + len(clips) < len(rows)
        if fits and not _is_damaged(clips, damaged):
            chosen += clips
    return {row.id for row in chosen}


def _unite_related(
    chosen: set[str | None], related: Mapping[str | None, list[ManifestRow]], speakers: list[list[ManifestRow]]
) -> set[str | None]:
    """Put related clips on one side: on that which has most of their seconds, but never all clips of a speaker into validation."""
    united = set(chosen)
    for identity in sorted(chosen, key=str):
        group = related[identity]
        if not all(row.id in united for row in group):
            inside = _sum_seconds([row for row in group if row.id in united])
            ids = {row.id for row in group}
            united = united | ids if 2 * inside >= _sum_seconds(group) else united - ids
    for clips in speakers:
        if all(row.id in united for row in clips):
            united -= {other.id for row in clips for other in related[row.id]}
    return united


def _choose_tails(
    rows: list[ManifestRow],
    chosen: set[str | None],
    wanted: float,
    related: Mapping[str | None, list[ManifestRow]],
    damaged: Collection[str],
) -> set[str | None]:
    """Return the ids of further clips of a speaker until there are enough: the last ones of the recordings in turn, undamaged ones first.

    It chooses only clips without relatives, and never all clips of a recording if there is another choice.
    """
    if len(rows) < 2:
        return set()
    own, least = [row for row in rows if row.id in chosen], _count_least(len(rows))
    open_rows = [[row for row in clips if row.id not in chosen] for clips in _order_recordings(rows, damaged)]
    sound = [clips for clips in open_rows if clips and not _is_damaged(clips, damaged)]
    recordings = [sorted(clips, key=lambda row: row.start or 0.0) for clips in sound or open_rows if clips]
    most = max((len(clips) for clips in recordings), default=0)
    if most > 1:
        recordings = [clips[1:] for clips in recordings if len(clips) > 1]
    alone = [[row for row in clips if len(related[row.id]) == 1] for clips in recordings]
    taken: list[ManifestRow] = []
    for turn in range(most):
        for clips in alone:
            enough = len(own) + len(taken) >= least and _sum_seconds([*own, *taken, *clips[-turn - 1 :][:1]]) > wanted
            if turn < len(clips) and not enough and len(own) + len(taken) + 1 < len(rows):
                taken.append(clips[-turn - 1])
    return {row.id for row in taken}


def _choose_related(
    rows: list[ManifestRow],
    chosen: set[str | None],
    related: Mapping[str | None, list[ManifestRow]],
    sizes: Mapping[str | None, int],
) -> set[str | None]:
    """Return the ids of whole groups of related clips, the smallest first, while a speaker has too few validation clips: in a script that
    several people read, each clip has relatives. `sizes`: number of clips of each speaker."""
    taken: set[str | None] = set()
    missing = _count_least(len(rows)) - sum(row.id in chosen for row in rows)
    groups = {related[row.id][0].id: related[row.id] for row in rows if row.id not in chosen}
    for group in sorted(groups.values(), key=lambda group: (len(group), group[0].id or "")):
        shares = Counter(row.speaker for row in group)
        if missing > 0 and len(rows) > 1 and all(count <= max(1, MOST_SHARE * sizes[speaker]) for speaker, count in shares.items()):
            taken |= {row.id for row in group}
            missing -= shares[rows[0].speaker]
    return taken


def _count_least(clips: int) -> int:
    """Return the minimum number of validation clips of a speaker with so many clips."""
    return max(1, min(max(LEAST_CLIPS, math.ceil(LEAST_SHARE * clips)), int(MOST_SHARE * clips)))


def _find_guard_clips(rows: list[ManifestRow], chosen: set[str | None]) -> set[str | None]:
    """Return the ids of clips less than five seconds from a validation clip of their recording; none if they exceed the allowed share of a
    speaker."""
    near = []
    for clips in _group_rows(rows, _read_recording_digest).values():
        spans = [((row.start or 0.0) - GUARD_SECONDS, (row.end or 0.0) + GUARD_SECONDS) for row in clips if row.id in chosen]
        near += [
            row
            for row in clips
            if row.id not in chosen and any((row.end or 0.0) > begin and (row.start or 0.0) < end for begin, end in spans)
        ]
    return {row.id for row in near} if _sum_seconds(near) <= GUARD_SHARE * _sum_seconds(rows) else set()


def _order_recordings(rows: list[ManifestRow], damaged: Collection[str]) -> list[list[ManifestRow]]:
    """Return the clips of each recording; undamaged recordings first, then by digest, so that new recordings hardly change the order."""
    recordings = sorted(_group_rows(rows, _read_recording_digest).items())
    return [clips for _, clips in sorted(recordings, key=lambda item: (_is_damaged(item[1], damaged), item[0]))]


def _is_damaged(clips: list[ManifestRow], damaged: Collection[str]) -> bool:
    return clips[0].source in damaged


def _read_recording_digest(row: ManifestRow) -> str:
    """Return the digest prefix of the recording, with which ids begin."""
    return (row.id or "").split("_")[0]


def _sum_seconds(rows: list[ManifestRow]) -> float:
    return sum(row.duration or 0.0 for row in rows)


def _group_rows(rows: list[ManifestRow], key: Callable[[ManifestRow], str]) -> dict[str, list[ManifestRow]]:
    return {name: list(group) for name, group in groupby(sorted(rows, key=key), key)}
