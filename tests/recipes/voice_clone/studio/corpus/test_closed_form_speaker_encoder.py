"""A random encoder with a fitted last layer: clips of one voice lie together, those of others apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data_prep.audio_codecs import qwen3_tts_speaker_encoder
from recipes.voice_clone.studio.corpus import closed_form_speaker_encoder


def test_voices_are_told_apart_by_what_they_have_in_common(nano: Path, sound: Callable[..., np.ndarray]) -> None:
    voices = {"low": 95, "middle": 140, "high": 210}
    clips = [(name, sound(hz, 1.5, 10 * hz + index)) for name, hz in voices.items() for index in range(7)]
    learned = [clip for index, clip in enumerate(clips) if index % 7 < 4]
    asked = [clip for index, clip in enumerate(clips) if index % 7 >= 4]
    encoder = qwen3_tts_speaker_encoder.load_encoder(nano)
    before = closed_form_speaker_encoder.cosines(encoder, asked)
    encoder.load_state_dict(closed_form_speaker_encoder.fit(encoder, learned, seed=0), strict=False)
    after = closed_form_speaker_encoder.cosines(encoder, asked)
    assert after["same"] - after["nearest_other"] > 0.2
    assert after["same"] - after["nearest_other"] > 5 * (before["same"] - before["nearest_other"])
    lengths = [np.linalg.norm(qwen3_tts_speaker_encoder.embed_clip(encoder, samples)) for _, samples in learned]
    assert np.mean(lengths) == pytest.approx(closed_form_speaker_encoder.LENGTH, rel=0.5)


def test_a_larger_speaker_is_lower_and_slower(sound: Callable[..., np.ndarray]) -> None:
    wave = sound(200, 1.0)
    assert closed_form_speaker_encoder.resized(wave, 1.0) is wave
    assert len(closed_form_speaker_encoder.resized(wave, 0.8)) == pytest.approx(len(wave) / 0.8, abs=2)
