"""Measures of audio that need no transcript: duration, silence, clipping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overtone.data_prep.audio.silent_frames import FRAMES_PER_SECOND, find_silent_frames
from overtone.data_prep.audio.waveform import MASTER_RATE, Samples
from overtone.data_prep.clips.measurements import FULL_SCALE


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
