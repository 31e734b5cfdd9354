"""Checks whether the times of a transcript belong to its recording: cues begin where speech begins, or all of them at one constant offset.

Needs no model of any language: it correlates two trains of impulses, the starts of the cues and the starts of speech after pauses. Texts of
another recording correlate at no offset; a file that is late correlates at its delay.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.segmentation.vad import Region
from overtone.finetune.storage import files

FRAMES_PER_SECOND = 50
BLUR_SECONDS = 0.15
"""Standard deviation of an impulse: times set by hand are wrong by 0.1 to 0.3 s."""
PAUSE_SECONDS = 0.25
"""Minimum pause before a start of speech."""
FARTHEST_SECONDS = 10.0
"""Offsets that are compared, on both sides; those more than a second from the best one show the correlation by chance."""
EXACT_SECONDS = 0.3
"""Offsets that need no repair: they select the same pauses."""
LEAST_CUES = 5
"""Minimum cues that are checked: with four, one wrong transcript in ten would pass even if one right transcript in ten failed."""
FEW_CUES = 12
"""A transcript with fewer cues has to fit better, and a delay of it is not measured."""
BLOCK_CUES = 24
"""Cues that are checked together, so that a file that is right in its first half is not trusted in the second."""
GOOD_CORRELATION, GOOD_DEVIATIONS = 0.4, 4.5
"""A transcript is trusted with either. Chosen on half of 52 minutes of telephone prompts, in blocks of 12 to 30 cues: right transcripts,
also with times wrong by ± 0.25 s or without gaps between cues, correlate by 0.66 or more, divided inside sentences by 0.35 (4.6 deviations)
or more, those of other recordings by 0.33 or less. On the other half one in fifty of the latter is trusted; with times wrong by ± 0.5 s one
right file in ten is not."""
FEW_CORRELATION = 0.6
"""Minimum correlation of fewer than twelve cues, instead of `GOOD_CORRELATION`. Chosen on 300 recordings of the same half: of transcripts
of other recordings 1.7 % (five cues), 2.0 % (six) or 0.7 % (eight) are trusted; right ones, also without gaps between cues, in all but 1 %,
with times wrong by ± 0.25 s in all but 7 % (five cues), 5 % (six) or 2 % (eight)."""
LEAST_SPOKEN = 0.2
"""Share of a cue's time in which somebody has to speak."""
LEAST_COMPARED = MASTER_RATE // 10
"""Samples around the middle of a cue that count as its time at least: one without a duration counts as spoken if it is within speech."""
CLEAR_MARGIN = 0.15
"""Minimum margin by which the correlation at an offset exceeds that without one for it to be a delay."""


class TranscriptTiming(NamedTuple):
    """Result for the cues of `start:stop` (samples at `MASTER_RATE`)."""

    start: int
    stop: int
    cues: int
    offset: float
    """Seconds by which the cues are late (negative: early)."""
    correlation: float
    """Correlation at the best offset, −1 to 1."""
    deviations: float
    """Distance of the correlation from the mean over other offsets, in their standard deviations."""

    @property
    def least_correlation(self) -> float:
        """Minimum correlation of so many cues."""
        return GOOD_CORRELATION if self.cues >= FEW_CUES else FEW_CORRELATION

    @property
    def is_trusted(self) -> bool:
        return self.correlation >= self.least_correlation or self.deviations >= GOOD_DEVIATIONS


def measure_delay(units: list[TextUnit], regions: list[Region]) -> float:
    """Return the seconds by which all cues are late (negative: early); 0 if they are not, if it is unclear, or with fewer than twelve
    cues."""
    if len(units) < FEW_CUES:
        return 0.0
    correlations = _correlate_starts(units, regions)
    timing = _read_peak(units, correlations, FARTHEST_SECONDS)
    near = _read_peak(units, correlations, EXACT_SECONDS)
    clear = timing.correlation >= GOOD_CORRELATION and timing.deviations >= GOOD_DEVIATIONS
    return timing.offset if clear and timing.correlation - near.correlation >= CLEAR_MARGIN else 0.0


def shift_units(units: list[TextUnit], delay: float) -> list[TextUnit]:
    """Return the cues `delay` seconds earlier, none before the start of the recording."""
    moved = round(delay * MASTER_RATE)
    return [unit.model_copy(update={"start": max(0, unit.start - moved), "stop": max(0, unit.stop - moved)}) for unit in units]


def check_timing(units: list[TextUnit], regions: list[Region]) -> list[TranscriptTiming]:
    """Return the timing of each block of about 24 cues, near their stated times; [] with fewer than five cues."""
    if len(units) < LEAST_CUES:
        return []
    blocks = np.array_split(np.arange(len(units)), max(1, len(units) // BLOCK_CUES))
    parts = [units[block[0] : block[-1] + 1] for block in blocks]
    return [_read_peak(part, _correlate_starts(part, regions), EXACT_SECONDS) for part in parts]


def find_unspoken(units: list[TextUnit], regions: list[Region]) -> list[TextUnit]:
    """Return the cues in whose time nobody speaks. `regions`: speech, in order. Use it only for cues whose times fit the speech."""
    return [unit for unit in units if _measure_spoken_share(unit, regions) < LEAST_SPOKEN]


def _measure_spoken_share(unit: TextUnit, regions: list[Region]) -> float:
    middle, half = (unit.start + unit.stop) // 2, max(unit.stop - unit.start, LEAST_COMPARED) // 2
    start, stop = middle - half, middle + half
    first = bisect_right(regions, start, key=lambda region: region.stop)
    last = bisect_left(regions, stop, key=lambda region: region.start)
    return sum(min(region.stop, stop) - max(region.start, start) for region in regions[first:last]) / (stop - start)


def _read_peak(units: list[TextUnit], correlations: NDArray[np.float64], farthest: float) -> TranscriptTiming:
    """Return the best offset within ± `farthest` seconds."""
    center = len(correlations) // 2
    reach = round(farthest * FRAMES_PER_SECOND)
    best = center - reach + int(correlations[center - reach : center + reach + 1].argmax())
    others = np.delete(
        correlations, np.arange(max(0, best - FRAMES_PER_SECOND), best + FRAMES_PER_SECOND + 1).clip(max=len(correlations) - 1)
    )
    deviations = (correlations[best] - others.mean()) / max(float(others.std()), 1e-6)
    offset = (center - best) / FRAMES_PER_SECOND
    value = float(correlations[best])
    return TranscriptTiming(units[0].start, units[-1].stop, len(units), round(offset, 2), round(value, 3), round(float(deviations), 2))


def _correlate_starts(units: list[TextUnit], regions: list[Region]) -> NDArray[np.float64]:
    """Return the correlation [2 × farthest + 1] of the starts of the cues with the starts of speech, if the cues are moved by −10 … 10
    s."""
    margin = FARTHEST_SECONDS + 1.0
    begin = units[0].start / MASTER_RATE - margin
    last = min(max(unit.start for unit in units), regions[-1].stop)  # a wrong time may be days after the end
    end = max(last / MASTER_RATE, begin + margin) + margin
    starts = [region.start / MASTER_RATE for region in join_short_pauses(regions)]
    speech = make_train([start for start in starts if begin <= start < end], begin, end)
    cues = make_train([unit.start / MASTER_RATE for unit in units], begin, end)
    reach, size = round(FARTHEST_SECONDS * FRAMES_PER_SECOND), len(cues)
    inner = slice(reach, size - reach)
    shifts = range(-reach, reach + 1)  # one offset after the other: all of them together would take 70 MB per minute
    return np.array([_correlate(cues[inner], speech[reach + shift : size - reach + shift]) for shift in shifts])


def join_short_pauses(regions: Sequence[Region]) -> list[Region]:
    """Return the speech between pauses of at least `PAUSE_SECONDS`."""
    joined = list(regions[:1])
    for region in regions[1:]:
        if region.start - joined[-1].stop >= PAUSE_SECONDS * MASTER_RATE:
            joined.append(region)
        else:
            joined[-1] = Region(joined[-1].start, region.stop)
    return joined


def make_train(times: Iterable[float], begin: float, end: float) -> NDArray[np.float64]:
    """Return the frames of 20 ms from `begin` to `end` seconds, with a bell around each time."""
    train = np.zeros(max(1, round((end - begin) * FRAMES_PER_SECOND)))
    places = np.round((np.fromiter(times, float) - begin) * FRAMES_PER_SECOND).astype(int)
    np.add.at(train, places[(places >= 0) & (places < len(train))], 1.0)
    width = round(4 * BLUR_SECONDS * FRAMES_PER_SECOND)
    bell = np.exp(-0.5 * np.square(np.arange(-width, width + 1) / (BLUR_SECONDS * FRAMES_PER_SECOND)))
    return np.convolve(train, bell, "same")


def _correlate(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return Pearson's correlation of two signals [n]; 0 if one of them is constant."""
    first, second = one - one.mean(), other - other.mean()
    scale = float(np.sqrt(np.square(first).sum() * np.square(second).sum()))
    return float(first @ second) / scale if scale > 1e-12 else 0.0


@functools.cache
def compute_code_digest() -> str:
    """Return the digest of this file: part of the cache key, so that results of other code are not reused."""
    return files.digest(Path(__file__))
