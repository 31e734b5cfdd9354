"""Endings of speech: by itself, cut in the middle of a sound, or with a long silence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overtone.data_prep.audio.silent_frames import FRAMES_PER_SECOND, find_silent_frames
from overtone.data_prep.audio.waveform import MASTER_RATE, Samples

LONGEST_SILENCE = 1.0
"""Seconds of silence after the last sound from which on an ending is bad. Recordings that were cut into clips end with less."""
LOUD_DB = -12.0
"""A clip whose last 20 ms are louder than this, relative to its loudest 20 ms, ends in the middle of a sound: speech decays by more."""


@dataclass(frozen=True)
class SpeechEnding:
    """The end of one clip."""

    silence: float
    """Seconds of silence after the last sound; the whole clip if it is silent."""
    level: float
    """Level of the last 20 ms relative to the loudest, in dB; 0 for a clip without samples."""

    def is_good(self, ended: bool) -> bool:
        """Return whether the speech stopped by itself (`ended`), after a sound had died away, and without a long silence."""
        return ended and self.silence <= LONGEST_SILENCE and self.level <= LOUD_DB


def measure_ending(samples: Samples) -> SpeechEnding:
    """The end of `samples` [n] at 24 kHz."""
    if not len(samples) or not np.any(samples):
        return SpeechEnding(len(samples) / MASTER_RATE, 0.0)
    sounding = np.flatnonzero(~find_silent_frames(samples, MASTER_RATE))
    frame = MASTER_RATE // FRAMES_PER_SECOND
    spoken = min((int(sounding[-1]) + 1) * frame, len(samples)) if len(sounding) else 0
    powers = np.square(samples[: len(samples) // frame * frame].astype(np.float64)).reshape(-1, frame).mean(axis=1)
    loudest = float(powers.max(initial=0.0)) or float(np.square(samples.astype(np.float64)).mean())
    last = float(np.square(samples[-frame:].astype(np.float64)).mean())
    level = 10 * float(np.log10(max(last, 1e-12) / max(loudest, 1e-12)))
    return SpeechEnding((len(samples) - spoken) / MASTER_RATE, min(level, 0.0))
