"""Loudness normalisation (ITU-R BS.1770): one gain per recording, which preserves the speaker's dynamics."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import Audio
from overtone.data_prep.segmentation.vad import Region

TARGET_LUFS = -23.0
"""Target of EBU R 128, measured by ITU-R BS.1770 on speech only."""
PEAK = 10 ** (-1.0 / 20)
"""-1 dBFS."""
SHORTEST_SECONDS = 0.4
"""One gating block of the standard."""
MEASURED_SECONDS = 300.0
"""Approximate duration measured, in pieces spread over the recording: pyloudnorm takes 200 MB of memory for five minutes."""
PIECE_SECONDS = 5.0
REACH_SECONDS = 1.0
"""Maximum distance of a clip's edge from speech: margins are shorter, and clips are cut in longer pauses."""


def compute_gain(master: Audio, regions: list[Region]) -> float:
    """Return the factor that normalises the speech of a recording to -23 LUFS, limited so that no clip sample exceeds -1 dBFS.

    1.0 for silence and for less than 0.4 s of speech. `regions`: in samples at the rate of `master`.
    """
    loudness = measure_loudness(Audio(_collect_speech(master, regions), master.rate))
    if loudness is None:
        return 1.0
    wanted = 10 ** ((TARGET_LUFS - loudness) / 20)
    # Sounds further away from speech than this, such as a slammed door, are in no clip.
    reach = round(REACH_SECONDS * master.rate)
    peak = max(_find_peak_between(master, max(region.start - reach, 0), region.stop + reach) for region in regions)
    return float(min(wanted, PEAK / peak))


def measure_loudness(audio: Audio) -> float | None:
    """Return the integrated loudness in LUFS; None below 0.4 s and for silence."""
    import pyloudnorm

    if audio.seconds < SHORTEST_SECONDS:
        return None
    with np.errstate(divide="ignore"):  # silence
        loudness = float(pyloudnorm.Meter(audio.rate).integrated_loudness(audio.samples.astype(np.float64)))
    return loudness if np.isfinite(loudness) else None


def _collect_speech(master: Audio, regions: list[Region]) -> NDArray[np.float32]:
    """Return the samples of the speech; only every n-th piece if there is too much."""
    piece = round(PIECE_SECONDS * master.rate)
    spans = [(at, min(at + piece, region.stop)) for region in regions for at in range(region.start, region.stop, piece)]
    total = sum(region.stop - region.start for region in regions)
    every = max(1, math.ceil(total / (MEASURED_SECONDS * master.rate)))
    return np.concatenate([master.samples[:0], *(master.samples[start:stop] for start, stop in spans[::every])])


def _find_peak_between(master: Audio, start: int, stop: int) -> float:
    """Return the peak magnitude, computed minute by minute: a region may last for hours."""
    edges = [*range(start, min(stop, len(master.samples)), 60 * master.rate), stop]
    return max(float(np.abs(master.samples[one:other]).max(initial=0.0)) for one, other in itertools.pairwise(edges))
