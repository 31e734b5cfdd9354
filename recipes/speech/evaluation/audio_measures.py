"""Measures of audio that need no transcript: duration, silence, clipping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.audio.waveform import MASTER_RATE, Samples
from data_prep.clips.measurements import FULL_SCALE

FRAME = MASTER_RATE // 50
"""Samples: 20 ms."""
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
    """Number of samples in silent frames of 20 ms. The last frame may be shorter; its own length counts."""
    edges = np.arange(0, len(samples), FRAME)
    if not len(edges):
        return 0
    lengths = np.diff(np.append(edges, len(samples)))
    power = np.add.reduceat(samples.astype(np.float64) ** 2, edges) / lengths
    silent = power < max(power.max() * 10 ** (QUIET_DB / 10), 10 ** (FLOOR_DB / 10))
    return int(lengths[silent].sum())
