"""Figures of a codec: zero for the audio itself, large for another, and identified speakers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from overtone.finetune.errors import UserError
from workshop.demo_models.codec import measure_codec
from workshop.demo_models.codec.training_clips import CodecClip, make_clip


def test_the_distance_is_zero_for_the_original_and_large_for_the_mean_frame(clips: list[CodecClip]) -> None:
    found = measure_codec.measure_distances(clips, clips)
    assert found["all"] == found["a"] == found["b"] == 0
    assert found["mean_frame"] > 2


@pytest.mark.parametrize("late", [0, 480, 960])
def test_the_delay_of_a_codec_is_found(clips: list[CodecClip], late: int) -> None:
    random = np.random.default_rng(0)
    waves = [clip.cut(0, clip.frames, late) + 0.003 * random.normal(size=len(clip.wave)).astype(np.float32) for clip in clips[:3]]
    assert measure_codec.find_delay(clips[:3], waves) == late


def test_one_cepstrum_gives_the_distance_of_the_formula() -> None:
    bands = 64
    basis = np.cos(np.pi * (np.arange(bands) + 0.5) * 3 / bands)
    tilt = np.tile(basis, (5, 1)).astype(np.float32)  # nepers of power: half of it in amplitude
    found = measure_codec.measure_mel_cepstral_distance(tilt, np.zeros_like(tilt))
    assert found == pytest.approx(10 / np.log(10) * np.sqrt(2) * 0.5, rel=1e-4)


def test_the_distance_ignores_the_level() -> None:
    spectra = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    assert measure_codec.measure_mel_cepstral_distance(spectra, spectra + 2) == pytest.approx(0, abs=1e-5)


def test_the_pitch_error_is_in_cents(clips: list[CodecClip]) -> None:
    features = clips[0].features
    assert measure_codec.measure_pitch_error(features, features) == 0
    assert measure_codec.measure_pitch_error(features, replace(features, log_hz=features.log_hz + np.log(2) / 12)) == pytest.approx(
        100, rel=1e-3
    )


def test_speakers_are_identified_and_swapped_labels_are_noticed(clips: list[CodecClip]) -> None:
    swapped = [replace(clip, voice="ab"[clip.voice == "a"]) for clip in clips[8:]]
    assert measure_codec.measure_speaker_accuracy(clips[:8], {"right": clips[8:], "swapped": swapped}) == {"right": 1.0, "swapped": 0.0}


def test_silence_around_speech_is_not_speech(clips: list[CodecClip]) -> None:
    wave = np.concatenate([np.zeros(24000, dtype=np.float32), clips[0].wave])
    speech = measure_codec.find_speech(make_clip(wave, "", "").features)
    assert not speech[:95].any()
    assert speech[105:].mean() > 0.5


def test_zero_sentences_are_refused() -> None:
    with pytest.raises(UserError, match="--sentences 0"):
        measure_codec.main(["--sentences", "0"])
