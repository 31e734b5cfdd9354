"""Repairs the times of cues whose clock drifts against the recording's, or jumps where something was cut out or inserted.

Needs no model of any language. Each window of a few cues is compared with the starts of speech at all offsets within minutes; one with a
single clear peak is an anchor. Chance gives no two anchors with the same offset, so a segment of the recording is proven by two of them
that share no cue. Only cues of proven segments keep their text, and none at the breaks between segments that do not clearly fit one side.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.subtitle_sync import (
    BLUR_SECONDS,
    FEW_CORRELATION,
    FRAMES_PER_SECOND,
    check_timing,
    join_short_pauses,
    make_train,
)
from overtone.data_prep.segmentation.vad import Region
from overtone.finetune.storage import files

WINDOW_CUES, STEP_CUES = 12, 3
"""Cues that are compared together, and the step in cues from one window to the next."""
REACH_SECONDS, REACH_SHARE = 150.0, 0.002
"""Offsets that are compared: so many seconds on both sides, and a share of the time of the cue, since a clock is known to half a step of
`RATES`."""
RATES = np.round(np.arange(-0.045, 0.0451, 0.0025), 4)
"""Clocks that are compared, as a change of the rate; 25 frames per second read as 24 are 0.0417. What is between them blurs a window by
less than 0.05 s, and is measured afterwards from the offsets of the windows."""
CLEAR_SHARE = 0.6
"""Share of windows with an anchor from which the recording's own clock is used without comparing others."""
RATE_WINDOWS = 24
"""Windows that decide between clocks."""
PEAK, PEAK_MARGIN = 0.55, 0.15
"""Correlation of an anchor, and by how much every other offset more than a second away is lower."""
NEAR_SECONDS, NEAR_DRIFT = 0.35, 0.002
"""Maximum distance in seconds between the offset of an anchor and that of the anchor before it in a segment, and its increase per second
between them."""
HIT_SECONDS = (0.08, 0.25)
"""Maximum distance in seconds between a fitting cue and a start of speech: three times the median error in its segment, within these
limits."""
EXACT_SHARE = 0.75
"""Share of cues that end where speech ends, above which all cues have to."""
MISS = -1.5
"""Score at a break of a cue that does not fit; one that fits has 1. By chance three in ten fit."""
OVERLAP = MASTER_RATE // 5
"""Samples by which a cue may begin before the end of the segment before its own."""
OTHER_END_CUES = 8
"""Number of cues left out at one end of a transcript that otherwise fits, from which they are not just inexact."""
UNSURE_CUES = 2
"""Number of fitting cues that are left out next to others left out: they may fit by chance, or the break is inside one."""


class TimingSegment(BaseModel):
    """A part of a recording with the error of its transcript's times."""

    model_config = ConfigDict(frozen=True)

    start: float
    """Time of the first cue in the recording, in seconds."""
    stop: float
    cues: int
    offset: float
    """Seconds by which the first cue was late (negative: early)."""
    drift_ppm: float
    """Excess speed of the transcript's clock, in millionths."""


class TimingRepair(BaseModel):
    """Cues with repaired times; without segments, nothing is proven."""

    model_config = ConfigDict(frozen=True)

    units: list[TextUnit] = []
    segments: list[TimingSegment] = []
    left_out: int = 0
    """Cues whose times are not proven."""
    unproven: list[Region] = []
    """Speech between segments, and beside cues that are left out; a clip that contains some of it is not trusted."""
    has_other_ends: bool = False
    """True if the first or last cues clearly do not fit the segment that all others fit."""


class _Anchor(NamedTuple):
    """A window with a clear offset: the cues `first:first + WINDOW_CUES`."""

    first: int
    time: float
    """Seconds of the middle of the window, by the transcript."""
    place: float
    """Seconds of that middle in the recording."""
    correlation: float


class _Line(NamedTuple):
    """Maps times of the transcript to the recording, for the cues of a segment that anchors cover."""

    rate: float
    shift: float
    first: int
    stop: int

    last_place: float
    """Seconds in the recording of its last anchor."""

    def move(self, seconds: float) -> float:
        """Return the seconds in the recording of a time of the transcript."""
        return self.rate * seconds + self.shift


def repair_times(units: Sequence[TextUnit], regions: Sequence[Region]) -> TimingRepair:
    """Return the cues with the times of the speech, segment by segment. `regions`: speech, in order."""
    if len(units) < 2 * WINDOW_CUES:
        return TimingRepair()
    talk = join_short_pauses(regions)
    if len(talk) < WINDOW_CUES:
        return TimingRepair()
    speech = make_train([one.start / MASTER_RATE for one in talk], 0.0, regions[-1].stop / MASTER_RATE + 1.0)
    times = np.array([unit.start / MASTER_RATE for unit in units])
    rate = _find_rate(times, speech)
    lines = _find_lines(_find_anchors(times, speech, rate), rate)
    if not lines:
        return TimingRepair()
    fitting = [_find_fitting(line, units, talk) for line in lines]
    ranges = _choose_ranges(lines, [np.where(one, 1.0, MISS) for one in fitting])
    inner = np.concatenate([one[line.first + WINDOW_CUES : line.stop - WINDOW_CUES] for line, one in zip(lines, fitting, strict=True)])
    is_exact = len(inner) > WINDOW_CUES and float(inner.mean()) >= EXACT_SHARE
    ends = ((lines[0], units[: ranges[0][0]]), (lines[-1], units[ranges[-1][1] :]))
    found = _move_units(units, regions, lines, ranges)
    return found.model_copy(update={"has_other_ends": is_exact and any(_is_other_end(line, end, regions) for line, end in ends)})


def describe_repair(repair: TimingRepair) -> str:
    """Return a description of the repair, with numbers."""
    parts = [
        f"from {segment.start:.1f} s on {abs(segment.offset):.2f} s {'late' if segment.offset > 0 else 'early'}, its clock "
        f"{abs(segment.drift_ppm):.0f} ppm {'fast' if segment.drift_ppm > 0 else 'slow'} ({segment.cues} cues)"
        for segment in repair.segments
    ]
    left_out = f"; {repair.left_out} cues left out, whose times are not proven" if repair.left_out else ""
    return f"times of the transcript repaired by the pauses of the speech: {'; '.join(parts)}{left_out}"


def _find_rate(times: NDArray[np.float64], speech: NDArray[np.float64]) -> float:
    """Return the clock at which the anchors of some windows are best; 1 if enough windows have one at the recording's own."""
    every = max(STEP_CUES, (len(times) - WINDOW_CUES) // RATE_WINDOWS)
    if len(_find_anchors(times, speech, 1.0, every)) > CLEAR_SHARE * (len(times) - WINDOW_CUES) / every:
        return 1.0
    found = {float(1 + change): _find_anchors(times, speech, float(1 + change), every) for change in RATES}
    return max(found, key=lambda rate: (sum(anchor.correlation for anchor in found[rate]), -abs(rate - 1)))


def _find_anchors(times: NDArray[np.float64], speech: NDArray[np.float64], rate: float, every: int = STEP_CUES) -> list[_Anchor]:
    """Return the windows with one clear peak, every so many cues and at the end, if the transcript's clock runs at `rate`."""
    last = len(times) - WINDOW_CUES
    found = []
    for first in [*range(0, last, every), last]:
        window = times[first : first + WINDOW_CUES]
        middle = float(window.mean())
        place = _find_place((window - middle) * rate, rate * middle, speech)
        if place is not None:
            found.append(_Anchor(first, middle, *place))
    return found


def _find_place(window: NDArray[np.float64], middle: float, speech: NDArray[np.float64]) -> tuple[float, float] | None:
    """Return the seconds in the recording that belong to the `middle` of the cues at `window`, relative to it, with the correlation there;
    None without a clear peak."""
    reach = REACH_SECONDS + REACH_SHARE * middle
    edge = 4 * BLUR_SECONDS
    cues = make_train(window, window[0] - edge, window[-1] + edge)
    begin = round((middle + window[0] - edge - reach) * FRAMES_PER_SECOND)
    stop = round((middle + window[0] - edge + reach) * FRAMES_PER_SECOND) + len(cues)
    inside = speech[max(begin, 0) : max(stop, 0)]
    if len(inside) < 2 * len(cues):
        return None
    correlations = _correlate_at_all_offsets(cues, inside)
    best = int(correlations.argmax())
    others = correlations.copy()
    others[max(0, best - FRAMES_PER_SECOND) : best + FRAMES_PER_SECOND + 1] = -1.0
    if correlations[best] < PEAK or correlations[best] - others.max() < PEAK_MARGIN:
        return None
    return (max(begin, 0) + best) / FRAMES_PER_SECOND + edge - float(window[0]), float(correlations[best])


def _correlate_at_all_offsets(cues: NDArray[np.float64], speech: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Pearson's correlation [len(speech) − len(cues) + 1] of the cues with the speech from each frame on."""
    count, size = len(cues), 1 << (len(speech) + len(cues) - 1).bit_length()  # a length with a large prime factor takes ten times as long
    centred = cues - cues.mean()
    products = np.fft.irfft(np.fft.rfft(speech, size) * np.conj(np.fft.rfft(centred, size)), size)[: len(speech) - count + 1]
    sums, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (speech, speech * speech))
    mean = (sums[count:] - sums[:-count]) / count
    power = np.maximum(squares[count:] - squares[:-count] - count * mean * mean, 1e-9)
    return products / np.sqrt(power * max(float(centred @ centred), 1e-9))


def _find_lines(anchors: Sequence[_Anchor], rate: float) -> list[_Line]:
    """Return the segments that two anchors without a common cue prove, in order. An anchor by chance between two of one segment is left
    out."""
    proven = [anchor for group in _chain(anchors, rate) if group[-1].first - group[0].first >= WINDOW_CUES for anchor in group]
    lines = list[_Line]()
    for group in _chain(proven, rate):
        times, places = (np.array([getattr(anchor, field) for anchor in group]) for field in ("time", "place"))
        slope = float(np.polyfit(times, places, 1)[0])
        line = _Line(slope, float(np.mean(places - slope * times)), group[0].first, group[-1].first + WINDOW_CUES, group[-1].place)
        if lines and group[0].place < lines[-1].last_place:
            continue  # speech does not go back
        lines.append(line)
    return lines


def _chain(anchors: Sequence[_Anchor], rate: float) -> list[list[_Anchor]]:
    """Return the neighbouring anchors whose places continue each other."""
    groups = list[list[_Anchor]]()
    for anchor in anchors:
        before = groups[-1][-1] if groups else None
        passed = anchor.time - before.time if before else 0.0
        if before and abs(anchor.place - before.place - rate * passed) <= NEAR_SECONDS + NEAR_DRIFT * passed:
            groups[-1].append(anchor)
        else:
            groups.append([anchor])
    return groups


def _find_fitting(line: _Line, units: Sequence[TextUnit], speech: Sequence[Region]) -> NDArray[np.bool_]:
    """Return [cues]: True for those that begin where speech begins if they are moved, as exactly as most cues of the segment do. If most
    also end where speech ends, they have to do so too. `speech`: between pauses."""
    fitting = np.ones(len(units), bool)
    for edge in ("start", "stop"):
        known = np.array([getattr(region, edge) for region in speech]) / MASTER_RATE
        moved = np.array([line.move(getattr(unit, edge) / MASTER_RATE) for unit in units])
        after = np.searchsorted(known, moved).clip(1, len(known) - 1)
        errors = np.minimum(np.abs(known[after] - moved), np.abs(known[after - 1] - moved))
        inside = errors[line.first : line.stop]
        limit = float(np.clip(3 * np.median(inside), *HIT_SECONDS))
        if edge == "start" or np.mean(inside <= limit) >= EXACT_SHARE:
            fitting &= errors <= limit
    return fitting


def _choose_ranges(lines: Sequence[_Line], scores: Sequence[NDArray[np.float64]]) -> list[tuple[int, int]]:
    """Return the cues `first:stop` of each segment: those that its anchors cover and, at its ends, as many as fit it and not its
    neighbour."""
    count = len(scores[0])
    high = lines[0].first + WINDOW_CUES
    unsure = high - _choose_edge(scores[0][:high][::-1])
    firsts, stops = [unsure + UNSURE_CUES if unsure else 0], list[int]()
    for (before, own), (after, other) in itertools.pairwise(zip(lines, scores, strict=True)):
        low, high = max(before.stop - WINDOW_CUES, 0), min(after.first + WINDOW_CUES, count)
        low, high = min(low, after.first), max(high, before.stop)
        gains = np.concatenate([[0.0], np.cumsum(own[low:high])])
        rests = np.concatenate([np.cumsum(other[low:high][::-1])[::-1], [0.0]])
        best_from = np.maximum.accumulate(rests[::-1])[::-1]
        end = int((gains + best_from).argmax())
        begin = end + int(np.flatnonzero(rests[end:] == best_from[end])[-1])
        stops.append(low + end - UNSURE_CUES)
        firsts.append(low + begin + UNSURE_CUES)
    low = lines[-1].stop - WINDOW_CUES
    unsure = low + _choose_edge(scores[-1][low:])
    stops.append(unsure - UNSURE_CUES if unsure < count else count)
    return list(zip(firsts, stops, strict=True))


def _choose_edge(scores: NDArray[np.float64]) -> int:
    """Return the number of cues with the best sum of scores."""
    return int(np.concatenate([[0.0], np.cumsum(scores)]).argmax())


def _is_other_end(line: _Line, end: Sequence[TextUnit], regions: Sequence[Region]) -> bool:
    """Return whether the cues left out at an end do not fit the line even together: of exact ones each may begin before its speech."""
    if len(end) < OTHER_END_CUES:
        return False
    moved = [_move_unit(unit, line) for unit in end]
    return min(timing.correlation for timing in check_timing(moved, list(regions))) < FEW_CORRELATION


def _move_units(
    units: Sequence[TextUnit], regions: Sequence[Region], lines: Sequence[_Line], ranges: Sequence[tuple[int, int]]
) -> TimingRepair:
    moved, segments, spans, position, used = list[TextUnit](), list[TimingSegment](), list[Region](), 0, 0
    for line, (first, stop) in zip(lines, ranges, strict=True):
        own = [_move_unit(unit, line) for unit in units[first:stop]]
        own = [unit for unit in own if unit.start >= position - OVERLAP]
        if not own:
            continue
        if moved or first > used:
            spans.append(Region(position, own[0].start))
        moved, position, used = moved + own, own[-1].stop, stop
        begin = units[stop - len(own)].start / MASTER_RATE
        segments.append(
            TimingSegment(
                start=round(own[0].start / MASTER_RATE, 2),
                stop=round(own[-1].stop / MASTER_RATE, 2),
                cues=len(own),
                offset=round(begin - line.move(begin), 2),
                drift_ppm=round((1 / line.rate - 1) * 1e6, 1),
            )
        )
    if used < len(units):
        spans.append(Region(position, regions[-1].stop))
    unproven = [region for region in regions if any(span.start <= region.middle < span.stop for span in spans)]
    return TimingRepair(units=moved, segments=segments, left_out=len(units) - len(moved), unproven=unproven)


def _move_unit(unit: TextUnit, line: _Line) -> TextUnit:
    start, stop = (max(0, round(line.move(edge / MASTER_RATE) * MASTER_RATE)) for edge in (unit.start, unit.stop))
    return unit.model_copy(update={"start": start, "stop": max(stop, start + 1)})


@functools.cache
def compute_code_digest() -> str:
    """Return the digest of this file: part of the cache key, so that results of other code are not reused."""
    return files.digest(Path(__file__))
