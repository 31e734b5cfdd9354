"""Fingerprints of clips, by which the same sound is recognised in another format, at another level, shifted, clipped or with noise.

A fingerprint is a sequence of 24-bit words, one per 32 ms: bit b says whether the difference in energy between two neighbouring frequency
bands rose or fell since the frame before (Haitsma and Kalker, "A Highly Robust Audio Fingerprinting System", 2002, with a coarser frame).
The frames lie on one grid in the whole recording.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples

Words = NDArray[np.uint32]

WINDOW, HOP = 6144, 768
"""Samples at `MASTER_RATE`: 256 ms, so that a shift by half a hop changes few bits, and 32 ms."""
BANDS = 25
BANDS_HZ = (200.0, 3300.0)
"""Within telephone bandwidth, so that copies at a low sample rate are found."""
FRAMES = 64  # frames transformed at a time


def compute_fingerprint(samples: Samples, start: int, stop: int) -> Words:
    """Return [T] words of `samples[start:stop]`. `samples`: [n], the whole recording at `MASTER_RATE`; frames start at multiples of 32
    ms."""
    first, count = -(-start // HOP), max(0, (stop - WINDOW) // HOP - -(-start // HOP) + 1)
    edges = np.round(np.geomspace(*BANDS_HZ, BANDS + 1) * WINDOW / MASTER_RATE).astype(int)
    window = np.hanning(WINDOW).astype(np.float32)
    energies = np.empty((count, BANDS))
    for begin in range(0, count, FRAMES):
        part = samples[(first + begin) * HOP : (first + min(begin + FRAMES, count) - 1) * HOP + WINDOW]
        power = np.square(np.abs(np.fft.rfft(np.lib.stride_tricks.sliding_window_view(part, WINDOW)[::HOP] * window)))
        energies[begin : begin + FRAMES] = np.add.reduceat(power[:, : edges[-1]], edges[:-1], axis=1)
    levels = np.log(energies + 1e-9)
    bits = np.diff(np.diff(levels, axis=1), axis=0, prepend=np.zeros((min(count, 1), BANDS - 1))) > 0
    return (bits.astype(np.uint32) << np.arange(BANDS - 1, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
