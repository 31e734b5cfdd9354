"""How much louder or softer a recording becomes: one gain for the whole of it, so that its speaker's dynamics stay as they are."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from data_prep.audio import Audio
from data_prep.vad import Region

TARGET_LUFS = -23.0
"""EBU R 128, measured as ITU-R BS.1770 says, on speech alone."""
PEAK = 10 ** (-1.0 / 20)
"""-1 dBFS."""
SHORTEST_SECONDS = 0.4
"""One gating block of the standard."""
MEASURED_SECONDS = 300.0
"""About, in pieces from all over the recording: pyloudnorm holds all of it several times in memory, 200 MB for five minutes."""
PIECE_SECONDS = 5.0
REACH_SECONDS = 1.0
"""How far from speech a clip can reach: its margins are shorter, and a longer pause is where clips are cut."""


def gain(master: Audio, regions: list[Region]) -> float:
    """Factor that brings the speech of a recording to -23 LUFS, or as near as no sample of a clip passes -1 dBFS.

    1.0 if there are less than 0.4 s of speech, or if it is silence. `regions` count at the rate of `master`.
    """
    loudness = measured(Audio(_speech(master, regions), master.rate))
    if loudness is None:
        return 1.0
    wanted = 10 ** ((TARGET_LUFS - loudness) / 20)
    return float(min(wanted, PEAK / _peak(master, regions)))


def measured(audio: Audio) -> float | None:
    """Integrated loudness in LUFS; None below 0.4 s and for silence."""
    import pyloudnorm

    if audio.seconds < SHORTEST_SECONDS:
        return None
    with np.errstate(divide="ignore"):  # silence
        loudness = float(pyloudnorm.Meter(audio.rate).integrated_loudness(audio.samples.astype(np.float64)))
    return loudness if np.isfinite(loudness) else None


def _speech(master: Audio, regions: list[Region]) -> NDArray[np.float32]:
    """All of it; or every second, third… piece, if that is too much."""
    piece = round(PIECE_SECONDS * master.rate)
    spans = [(at, min(at + piece, region.stop)) for region in regions for at in range(region.start, region.stop, piece)]
    total = sum(region.stop - region.start for region in regions)
    every = max(1, math.ceil(total / (MEASURED_SECONDS * master.rate)))
    return np.concatenate([master.samples[:0], *(master.samples[start:stop] for start, stop in spans[::every])])


def _peak(master: Audio, regions: list[Region]) -> float:
    """Largest magnitude within reach of speech. What lies further away, as a slammed door, is in no clip."""
    reach = round(REACH_SECONDS * master.rate)
    return max(_largest(master, max(region.start - reach, 0), region.stop + reach) for region in regions)


def _largest(master: Audio, start: int, stop: int) -> float:
    """Minute by minute: a region may last for hours."""
    edges = [*range(start, min(stop, len(master.samples)), 60 * master.rate), stop]
    return max(float(np.abs(master.samples[one:other]).max(initial=0.0)) for one, other in itertools.pairwise(edges))
