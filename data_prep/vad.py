"""Where people speak: silero-vad on 16 kHz, given back as regions of the 24 kHz master."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from data_prep.audio import MASTER_RATE, SPEECH_RATE, Audio, to_rate
from data_prep.device import threads_kept

WINDOW_SECONDS = 28.0
"""Longest stretch that Whisper gets: its window is 30 s, and the edges need air."""
WINDOW_GAP_SECONDS = 2.0
LATE = 1 / 2
"""Of the longest stretch: from there on it may end at a pause, though more would fit. That makes a sixth more stretches of 28 s; a sentence
that a stretch's end divides is heard without what makes sense of it."""
MOST_REGIONS = 500
"""Looked at for one stretch; 28 s hold fewer of the shortest."""
WINDOW_AIR_SECONDS = 0.15
MIN_SILENCE_MS, MIN_SPEECH_MS, PAD_MS = 150, 100, 30
"""30 ms of padding: measured to lose 0.1 % of true speech; 150 ms leaves at least 90 ms of gap after it."""


class Region(NamedTuple):
    """Samples `start:stop` at `MASTER_RATE`."""

    start: int
    stop: int

    @property
    def seconds(self) -> float:
        return (self.stop - self.start) / MASTER_RATE

    @property
    def middle(self) -> int:
        return (self.start + self.stop) // 2


def settings() -> dict[str, Any]:
    """All that the regions depend on besides the sound: part of the cache key."""
    return {"silero-vad": version("silero-vad"), "silence": MIN_SILENCE_MS, "speech": MIN_SPEECH_MS, "pad": PAD_MS}


@functools.cache
def load_vad() -> Any:
    """The detector, one per process; its weights are in the package."""
    with threads_kept():
        import silero_vad

        return silero_vad.load_silero_vad()


def find_speech(detector: Any, audio: Audio, length: int) -> list[Region]:
    """Regions of speech in `audio` (16 kHz), for a master of `length` samples. Raises ValueError at another rate."""
    import torch
    from silero_vad import get_speech_timestamps

    if audio.rate != SPEECH_RATE:
        raise ValueError(f"speech detection hears {SPEECH_RATE} Hz, not {audio.rate}")
    with threads_kept():
        torch.set_num_threads(
            1
        )  # it hears 32 ms at a time: more threads only wait for each other, for a hundred times longer if others run
        found = get_speech_timestamps(
            torch.from_numpy(audio.samples),
            detector,
            sampling_rate=SPEECH_RATE,
            min_speech_duration_ms=MIN_SPEECH_MS,
            min_silence_duration_ms=MIN_SILENCE_MS,
            speech_pad_ms=PAD_MS,
        )
    regions = [Region(*(to_rate(int(part[edge]), SPEECH_RATE, MASTER_RATE) for edge in ("start", "end"))) for part in found]
    return [Region(region.start, min(region.stop, length)) for region in regions if region.start < length]


def gaps(regions: list[Region], length: int) -> list[Region]:
    """What lies before, between and after the regions: one more than there are regions; the outer ones may be empty."""
    starts = [0, *(region.stop for region in regions)]
    stops = [*(region.start for region in regions), length]
    return [Region(start, stop) for start, stop in zip(starts, stops, strict=True)]


def windows(regions: list[Region], audio: Audio, longest: float | None = None) -> list[Region]:
    """Neighbouring regions packed into stretches for Whisper, each at most 28 s, or `longest`, and never across a long pause, with some
    air around. One that could hold more ends at its longest late pause, which is rather between two sentences than inside of one.

    A region that is longer by itself is split where it is quietest; no clip is ever cut there.
    """
    seconds = WINDOW_SECONDS if longest is None else longest
    pieces = [piece for region in regions for piece in _split(region, audio, seconds)]
    packed, first = list[Region](), 0
    while first < len(pieces):
        count = _first_window(pieces[first : first + MOST_REGIONS], seconds)
        packed.append(Region(pieces[first].start, pieces[first + count - 1].stop))
        first += count
    around = itertools.pairwise(gaps(packed, len(audio.samples)))
    return [_with_air(region, before, after) for region, (before, after) in zip(packed, around, strict=True)]


def _first_window(pieces: list[Region], seconds: float) -> int:
    """How many of the pieces go into one stretch."""
    lengths = [Region(pieces[0].start, piece.stop).seconds for piece in pieces]
    pauses = [Region(one.stop, other.start).seconds for one, other in itertools.pairwise(pieces)]
    fitting = sum(length <= seconds for length in lengths)
    long_pause = next((count for count, pause in enumerate(pauses, start=1) if pause > WINDOW_GAP_SECONDS), len(pieces))
    if long_pause <= fitting:
        return long_pause
    late = [count for count in range(1, fitting + 1) if lengths[count - 1] >= LATE * seconds]
    return max(late, key=lambda count: (pauses[count - 1], count), default=max(1, fitting))


def quietest(audio: Audio, start: int, stop: int) -> int:
    """Position of the middle of the quietest 10 ms in `start:stop`; the middle of a shorter stretch."""
    frame = audio.rate // 100
    count = (stop - start) // frame
    if count < 1:
        return (start + stop) // 2
    power = np.square(audio.samples[start : start + count * frame].astype(np.float64)).reshape(count, frame).sum(axis=1)
    return start + int(power.argmin()) * frame + frame // 2


def _split(region: Region, audio: Audio, seconds: float) -> Iterator[Region]:
    limit = int(seconds * MASTER_RATE)
    start = region.start
    while region.stop - start > limit:
        at = quietest(audio, start + limit // 2, start + limit)
        yield Region(start, at)
        start = at
    yield Region(start, region.stop)


def _with_air(region: Region, before: Region, after: Region) -> Region:
    air = int(WINDOW_AIR_SECONDS * MASTER_RATE)
    return Region(max(region.start - air, before.middle), min(region.stop + air, after.middle))
