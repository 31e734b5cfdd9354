"""Division of a long recording into parts of about ten minutes, cut in the middle of long pauses: units of parallel work and of resuming.

The division depends only on the speech regions and the transcript, so it is the same for any number of workers and in the next run.
"""

from __future__ import annotations

from bisect import bisect_left

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.segmentation.vad import Region, list_gaps

PART_SECONDS = 600.0
"""Target duration of a part. A part lasts at least half of it, except the last, and at most one and a half times if there is a pause."""
UNDIVIDED = 2
"""Recordings up to this multiple of the target are one part."""
STEP = 768
"""Edges are multiples of it: the hop of fingerprints, whose frames lie on one grid in the whole recording, and of 3, since 3 samples at 24
kHz last as long as 2 at 16 kHz."""


def list_parts(regions: list[Region], length: int, seconds: float, utterances: list[Region]) -> list[Region]:
    """Return the parts of a recording of `length` samples, in order and without gaps, each with at least one of the `regions`.

    A part ends at the longest pause in its range, preferably one that no utterance of a transcript covers. Clips are cut in each part by
    itself: at a pause of two seconds, which no Whisper window and no clip spans, the result is that of the whole recording.
    """
    if not is_divided(length, seconds):
        return [Region(0, length)]
    target = round(seconds * MASTER_RATE)
    pauses = _list_pauses(regions, length)
    free = [pause for pause in pauses if not _is_covered(pause, utterances)]
    parts, start = list[Region](), 0
    while length - start > target * 3 // 2:
        edge = _choose_edge(start, target, pauses, free)
        if edge is None:
            break
        parts.append(Region(start, edge))
        start = edge
    return [*parts, Region(start, length)]


def find_next_part(known: list[Region], start: int, length: int, seconds: float, utterances: list[Region]) -> Region | None:
    """Return the part from `start` of a recording of `length` samples, as `list_parts` will find it, from the regions that are `known` so
    far, from `start` on; None as long as they do not decide it. The last part is never decided before the end."""
    target = round(seconds * MASTER_RATE)
    if not is_divided(length, seconds) or length - start <= target * 3 // 2 or not known or known[-1].start <= start + target * 3 // 2:
        return None
    pauses = _list_pauses(known, length)
    edge = _choose_edge(start, target, pauses, [pause for pause in pauses if not _is_covered(pause, utterances)])
    return None if edge is None else Region(start, edge)


def _list_pauses(regions: list[Region], length: int) -> list[Region]:
    """Return the pauses between regions in which a part can end."""
    return [pause for pause in list_gaps(regions, length)[1:-1] if pause.stop - pause.start >= STEP]


def _choose_edge(start: int, target: int, pauses: list[Region], free: list[Region]) -> int | None:
    """Return the position at which the part from `start` ends, preferably in one of the `free` pauses; None: it ends with the recording."""
    earliest, latest = start + target // 2, start + target * 3 // 2
    after = bisect_left(pauses, latest, key=lambda pause: pause.middle)
    pause = _choose_pause(free, earliest, latest) or _choose_pause(pauses, earliest, latest) or next(iter(pauses[after:]), None)
    return None if pause is None else pause.middle - pause.middle % STEP


def is_divided(length: int, seconds: float) -> bool:
    """Return whether a recording of `length` samples is divided into parts of about `seconds`."""
    return length > UNDIVIDED * seconds * MASTER_RATE


def select_regions(regions: list[Region], part: Region) -> list[Region]:
    """Return the regions inside `part`, relative to its start."""
    first = bisect_left(regions, part.start, key=lambda region: region.start)
    last = bisect_left(regions, part.stop, key=lambda region: region.start)
    return [Region(region.start - part.start, region.stop - part.start) for region in regions[first:last]]


def _choose_pause(pauses: list[Region], earliest: int, latest: int) -> Region | None:
    """Return the longest pause with its middle in `earliest:latest`, the first of equally long ones."""
    first = bisect_left(pauses, earliest, key=lambda pause: pause.middle)
    last = bisect_left(pauses, latest, key=lambda pause: pause.middle)
    return max(pauses[first:last], key=lambda pause: pause.stop - pause.start, default=None)


def _is_covered(pause: Region, utterances: list[Region]) -> bool:
    """Return whether the middle of the pause is inside one of the `utterances`, sorted by start; they may overlap their neighbours."""
    after = bisect_left(utterances, pause.middle, key=lambda one: one.start)
    return any(one.stop > pause.middle for one in utterances[max(0, after - OVERLAPPING) : after])


OVERLAPPING = 8
"""Preceding utterances that are checked for reaching past the start of the next ones."""
