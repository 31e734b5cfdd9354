"""What a frame sounds like: right in pitch and level, and blind for what comes later."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from recipes.voice_clone.studio.codec import features
from recipes.voice_clone.studio.codec.features import LENGTH, PITCHES, SPECTRA, listen, whole_frames

Sound = Callable[..., np.ndarray]


@pytest.mark.parametrize("hz", [90.0, 120.0, 210.0, 280.0])
def test_the_pitch_is_that_of_the_sound(hz: float) -> None:
    time = np.arange(24000) / 24000
    wave = sum(np.sin(2 * np.pi * hz * k * time) / k for k in range(1, 8)).astype(np.float32) * 0.2
    log_hz, voicing = features.pitch(whole_frames(wave))
    inside = slice(3, 48)  # the last windows reach into the padding
    assert np.exp(log_hz[inside]) == pytest.approx(hz, rel=0.005)
    assert voicing[inside].min() > 0.95


def test_noise_and_silence_have_no_voice() -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal(1920 * 10).astype(np.float32)
    assert features.pitch(noise)[1].max() < 0.5
    assert features.pitch(np.zeros(1920 * 10, dtype=np.float32))[1].max() == 0


def test_a_frame_does_not_hear_the_next_one(sound: Sound) -> None:
    wave = whole_frames(sound(120, 1.0))
    other = wave.copy()
    other[5 * 1920 :] = 0.3 * np.random.default_rng(0).standard_normal(len(wave) - 5 * 1920)
    assert torch.equal(
        features.mel_power(torch.from_numpy(wave))[: 5 * SPECTRA], features.mel_power(torch.from_numpy(other))[: 5 * SPECTRA]
    )


def test_a_level_is_computed_as_if_the_sound_had_it(sound: Sound) -> None:
    wave = whole_frames(sound(120, 1.0))
    assert listen(wave).log_mel(0.25) == pytest.approx(listen(wave * 0.25).log_mel(1.0), abs=1e-4)


def test_noise_of_full_scale_has_about_unit_power() -> None:
    noise = torch.randn(24000 // 240 * 240, generator=torch.Generator().manual_seed(0))
    assert float(features.mel_power(noise)[5:].mean()) == pytest.approx(1, rel=0.1)


def test_shapes(sound: Sound) -> None:
    heard = listen(whole_frames(sound(120, 0.9)))
    assert heard.vectors(1.0).shape == (12, LENGTH)
    assert (heard.power.shape, heard.log_hz.shape, heard.voicing.shape) == ((12 * SPECTRA, 64), (12, PITCHES), (12, PITCHES))
