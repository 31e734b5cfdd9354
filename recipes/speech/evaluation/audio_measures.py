"""Measures of audio that need no transcript: duration, silence, clipping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.audio.waveform import MASTER_RATE, Samples
from data_prep.clips.measurements import FULL_SCALE

FRAMES_PER_SECOND = 50
"""Frames of 20 ms."""
QUIET_DB, FLOOR_DB = -40.0, -60.0
"""A frame is silent if it is more than 40 dB below the loudest frame, or more than 60 dB below full scale."""


@dataclass(frozen=True)
class AudioMeasures:
    """Measures of one clip."""

    seconds: float
    silent_seconds: float
    clipped_seconds: float

    @property
    def voiced_seconds(self) -> float:
        return self.seconds - self.silent_seconds


def measure(samples: Samples) -> AudioMeasures:
    """Measure `samples` [n] at 24 kHz, full scale 1.0."""
    return AudioMeasures(
        seconds=len(samples) / MASTER_RATE,
        silent_seconds=count_silent_samples(samples) / MASTER_RATE,
        clipped_seconds=int((np.abs(samples) >= FULL_SCALE).sum()) / MASTER_RATE,
    )


def count_silent_samples(samples: Samples) -> int:
    """Number of samples at 24 kHz in silent frames of 20 ms. The last frame may be shorter; its own length counts."""
    silent = np.repeat(find_silent_frames(samples, MASTER_RATE), MASTER_RATE // FRAMES_PER_SECOND)
    return int(silent[: len(samples)].sum())


def find_silent_frames(samples: Samples, rate: int) -> NDArray[np.bool_]:
    """Whether each frame of 20 ms is silent: bool [frames], of samples [n] at `rate` Hz. The last frame may be shorter."""
    edges = np.arange(0, len(samples), rate // FRAMES_PER_SECOND)
    if not len(edges):
        return np.zeros(0, bool)
    power = np.add.reduceat(samples.astype(np.float64) ** 2, edges) / np.diff(np.append(edges, len(samples)))
    silent: NDArray[np.bool_] = power < max(power.max() * 10 ** (QUIET_DB / 10), 10 ** (FLOOR_DB / 10))
    return silent
