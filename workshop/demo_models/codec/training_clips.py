"""The clips of the codec's training: whole frames at 24 kHz, with their features, at any level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overtone.data_prep.audio.waveform import Samples
from overtone.data_prep.audio_codecs.qwen3_tts_codec import SAMPLES_PER_FRAME

from .frame_features import SPECTRA, FrameFeatures, extract_features, pad_to_frames

LOUDEST_DB, QUIETEST_DB = 3.0, -20.0
"""Range of random levels, relative to a clip's own level."""


@dataclass(frozen=True)
class CodecClip:
    """One sentence."""

    wave: Samples
    """Whole frames at 24 kHz."""
    features: FrameFeatures
    text: str
    voice: str

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.wave) // SAMPLES_PER_FRAME

    def cut(self, first: int, last: int, delay: int = 0) -> Samples:
        """The samples of frames [first, last) when the clip begins after `delay` samples of silence."""
        start, end = first * SAMPLES_PER_FRAME - delay, last * SAMPLES_PER_FRAME - delay
        return np.pad(self.wave[max(start, 0) : max(end, 0)], (max(-start, 0), 0))


def make_clip(samples: Samples, text: str, voice: str) -> CodecClip:
    """From samples [n] at 24 kHz."""
    wave = pad_to_frames(samples)
    return CodecClip(wave, extract_features(wave), text, voice)


def slice_features(features: FrameFeatures, first: int, last: int) -> FrameFeatures:
    """Features of frames [first, last)."""
    return FrameFeatures(features.power[first * SPECTRA : last * SPECTRA], features.log_hz[first:last], features.voicing[first:last])


def draw_gain(random: np.random.Generator) -> float:
    """A random factor from -20 to +3 dB, more often near the upper end, as in recordings."""
    return float(10 ** ((LOUDEST_DB + (QUIETEST_DB - LOUDEST_DB) * random.uniform() ** 2) / 20))


def draw_gains(clips: Sequence[CodecClip], seed: int, version: int) -> list[float]:
    """One factor per clip; version 0 is the clips' own level."""
    if version == 0:
        return [1.0] * len(clips)
    random = np.random.default_rng([seed, version])
    return [draw_gain(random) for _ in clips]
