"""A random encoder with a fitted last layer: clips of one voice are similar, those of other voices are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder
from workshop.demo_models.corpus import closed_form_speaker_encoder


def test_the_fitted_layer_separates_speakers(nano: Path, sound: Callable[..., np.ndarray]) -> None:
    voices = {"low": 95, "middle": 140, "high": 210}
    clips = [(name, sound(hz, 1.5, 10 * hz + index)) for name, hz in voices.items() for index in range(7)]
    training = [clip for index, clip in enumerate(clips) if index % 7 < 4]
    held_out = [clip for index, clip in enumerate(clips) if index % 7 >= 4]
    encoder = qwen3_tts_speaker_encoder.load_encoder(nano)
    before = closed_form_speaker_encoder.measure_cosines(encoder, held_out)
    encoder.load_state_dict(closed_form_speaker_encoder.fit_last_layer(encoder, training, seed=0), strict=False)
    after = closed_form_speaker_encoder.measure_cosines(encoder, held_out)
    assert after["same"] - after["nearest_other"] > 0.2
    assert after["same"] - after["nearest_other"] > 5 * (before["same"] - before["nearest_other"])
    lengths = [np.linalg.norm(qwen3_tts_speaker_encoder.embed_clip(encoder, samples)) for _, samples in training]
    assert np.mean(lengths) == pytest.approx(closed_form_speaker_encoder.LENGTH, rel=0.5)


def test_resampling_changes_the_length(sound: Callable[..., np.ndarray]) -> None:
    wave = sound(200, 1.0)
    assert closed_form_speaker_encoder.resample_voice(wave, 1.0) is wave
    assert len(closed_form_speaker_encoder.resample_voice(wave, 0.8)) == pytest.approx(len(wave) / 0.8, abs=2)
