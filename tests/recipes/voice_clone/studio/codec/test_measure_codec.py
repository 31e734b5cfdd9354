"""The figures: zero for the sound itself, large for another, and voices told by what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from finetune.errors import UserError
from recipes.voice_clone.studio.codec import measure_codec
from recipes.voice_clone.studio.codec.training_clips import Clip, make_clip


def test_a_perfect_codec_has_no_distance_and_an_average_one_much(clips: list[Clip]) -> None:
    found = measure_codec.distances(clips, clips)
    assert found["all"] == found["a"] == found["b"] == 0
    assert found["mean_frame"] > 2


def test_a_tilt_of_one_cepstrum_has_the_distance_of_the_formula() -> None:
    bands = 64
    basis = np.cos(np.pi * (np.arange(bands) + 0.5) * 3 / bands)
    tilt = np.tile(basis, (5, 1)).astype(np.float32)  # nepers of power: half of it in amplitude
    found = measure_codec.mel_cepstral_distance(tilt, np.zeros_like(tilt))
    assert found == pytest.approx(10 / np.log(10) * np.sqrt(2) * 0.5, rel=1e-4)


def test_the_level_is_not_a_distance() -> None:
    spectra = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    assert measure_codec.mel_cepstral_distance(spectra, spectra + 2) == pytest.approx(0, abs=1e-5)


def test_the_pitchs_error_is_in_cents(clips: list[Clip]) -> None:
    heard = clips[0].heard
    assert measure_codec.pitch_error(heard, heard) == 0
    assert measure_codec.pitch_error(heard, replace(heard, log_hz=heard.log_hz + np.log(2) / 12)) == pytest.approx(100, rel=1e-3)


def test_voices_are_told_apart_and_a_swap_is_noticed(clips: list[Clip]) -> None:
    swapped = [replace(clip, voice="ab"[clip.voice == "a"]) for clip in clips[8:]]
    assert measure_codec.speaker_accuracy(clips[:8], {"right": clips[8:], "swapped": swapped}) == {"right": 1.0, "swapped": 0.0}


def test_silence_around_speech_is_not_speech(clips: list[Clip]) -> None:
    wave = np.concatenate([np.zeros(24000, dtype=np.float32), clips[0].wave])
    speech = measure_codec.speech(make_clip(wave, "", "").heard)
    assert not speech[:95].any()
    assert speech[105:].mean() > 0.5


def test_no_sentences_are_refused() -> None:
    with pytest.raises(UserError, match="--sentences 0"):
        measure_codec.main(["--sentences", "0"])
