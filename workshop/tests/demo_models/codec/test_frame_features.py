"""Features of a frame: right in pitch and level, and independent of later frames."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from workshop.demo_models.codec import frame_features
from workshop.demo_models.codec.frame_features import LENGTH, PITCHES, SPECTRA, extract_features, pad_to_frames

Sound = Callable[..., np.ndarray]


@pytest.mark.parametrize("hz", [90.0, 120.0, 210.0, 280.0])
def test_the_pitch_of_harmonic_sounds_is_right(hz: float) -> None:
    time = np.arange(24000) / 24000
    wave = sum(np.sin(2 * np.pi * hz * k * time) / k for k in range(1, 8)).astype(np.float32) * 0.2
    log_hz, voicing = frame_features.estimate_pitch(pad_to_frames(wave))
    inside = slice(3, 48)  # the last windows reach into the padding
    assert np.exp(log_hz[inside]) == pytest.approx(hz, rel=0.005)
    assert voicing[inside].min() > 0.95


def test_spectra_are_found_in_vectors_of_features(sound: Sound) -> None:
    features = extract_features(pad_to_frames(sound(120.0, 0.5)))
    assert torch.equal(frame_features.slice_spectra(features.vectors(0.5)), features.log_mel(0.5))


def test_noise_and_silence_are_unvoiced() -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal(1920 * 10).astype(np.float32)
    assert frame_features.estimate_pitch(noise)[1].max() < 0.5
    assert frame_features.estimate_pitch(np.zeros(1920 * 10, dtype=np.float32))[1].max() == 0


def test_features_do_not_depend_on_later_frames(sound: Sound) -> None:
    wave = pad_to_frames(sound(120, 1.0))
    other = wave.copy()
    other[5 * 1920 :] = 0.3 * np.random.default_rng(0).standard_normal(len(wave) - 5 * 1920)
    assert torch.equal(
        frame_features.compute_mel_power(torch.from_numpy(wave))[: 5 * SPECTRA],
        frame_features.compute_mel_power(torch.from_numpy(other))[: 5 * SPECTRA],
    )


def test_log_mel_at_another_level_equals_that_of_scaled_audio(sound: Sound) -> None:
    wave = pad_to_frames(sound(120, 1.0))
    assert extract_features(wave).log_mel(0.25) == pytest.approx(extract_features(wave * 0.25).log_mel(1.0), abs=1e-4)


def test_white_noise_of_full_scale_has_about_unit_power() -> None:
    noise = torch.randn(24000 // 240 * 240, generator=torch.Generator().manual_seed(0))
    assert float(frame_features.compute_mel_power(noise)[5:].mean()) == pytest.approx(1, rel=0.1)


def test_features_have_their_documented_shapes(sound: Sound) -> None:
    found = extract_features(pad_to_frames(sound(120, 0.9)))
    assert found.vectors(1.0).shape == (12, LENGTH)
    assert (found.power.shape, found.log_hz.shape, found.voicing.shape) == ((12 * SPECTRA, 64), (12, PITCHES), (12, PITCHES))
