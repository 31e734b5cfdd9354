"""The corpus as the codec's training reads it: clips of whole frames at 24 kHz, with their features, at any level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_prep.audio.waveform import Samples
from data_prep.audio_codecs.qwen3_tts import SAMPLES_PER_FRAME

from .features import SPECTRA, Heard, listen, whole_frames

LOUDEST_DB, QUIETEST_DB = 3.0, -20.0
"""Around a clip's own level."""


@dataclass(frozen=True)
class Clip:
    """One sentence."""

    wave: Samples
    """Whole frames at 24 kHz."""
    heard: Heard
    text: str
    voice: str

    @property
    def frames(self) -> int:
        return len(self.wave) // SAMPLES_PER_FRAME

    def cut(self, first: int, last: int) -> Samples:
        """The samples of frames [first, last)."""
        return self.wave[first * SAMPLES_PER_FRAME : last * SAMPLES_PER_FRAME]


def make_clip(samples: Samples, text: str, voice: str) -> Clip:
    """From samples at 24 kHz."""
    wave = whole_frames(samples)
    return Clip(wave, listen(wave), text, voice)


def taken(heard: Heard, first: int, last: int) -> Heard:
    """Frames [first, last)."""
    return Heard(heard.power[first * SPECTRA : last * SPECTRA], heard.log_hz[first:last], heard.voicing[first:last])


def gain_of(random: np.random.Generator) -> float:
    """A random factor from -20 to +3 dB, more often near the upper end, where recordings are."""
    return float(10 ** ((LOUDEST_DB + (QUIETEST_DB - LOUDEST_DB) * random.uniform() ** 2) / 20))


def gains(clips: Sequence[Clip], seed: int, version: int) -> list[float]:
    """One for each clip; version 0 is the clips' own level."""
    if version == 0:
        return [1.0] * len(clips)
    random = np.random.default_rng([seed, version])
    return [gain_of(random) for _ in clips]
