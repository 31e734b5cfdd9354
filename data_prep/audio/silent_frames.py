"""Frames without sound, by their level."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overtone.data_prep.audio.waveform import Samples

FRAMES_PER_SECOND = 50
"""Frames of 20 ms."""
QUIET_DB, FLOOR_DB = -40.0, -60.0
"""A frame is silent if it is more than 40 dB below the loudest frame, or more than 60 dB below full scale."""


def find_silent_frames(samples: Samples, rate: int) -> NDArray[np.bool_]:
    """Return whether each frame of 20 ms is silent: bool [frames], of samples [n] at `rate` Hz. The last frame may be shorter."""
    edges = np.arange(0, len(samples), rate // FRAMES_PER_SECOND)
    if not len(edges):
        return np.zeros(0, bool)
    power = np.add.reduceat(samples.astype(np.float64) ** 2, edges) / np.diff(np.append(edges, len(samples)))
    silent: NDArray[np.bool_] = power < max(power.max() * 10 ** (QUIET_DB / 10), 10 ** (FLOOR_DB / 10))
    return silent
