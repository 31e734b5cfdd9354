"""Bandwidth of sounds that were band-limited by resampling."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from overtone.data_prep.audio.bandwidth import measure_bandwidth
from overtone.data_prep.audio.waveform import MASTER_RATE


def limited(samples: np.ndarray, rate: int) -> np.ndarray:
    """What a recording at `rate` keeps of a sound at 24 kHz, back at 24 kHz in 16 bits."""
    narrow = soxr.resample(samples, MASTER_RATE, rate, quality="VHQ")
    return np.rint(soxr.resample(narrow, rate, MASTER_RATE, quality="VHQ") * 32767).astype(np.int16) / np.float32(32768)


WHITE = (0.05 * np.random.default_rng(0).standard_normal(4 * MASTER_RATE)).astype(np.float32)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050])
@pytest.mark.parametrize("level", [1.0, 0.01])
def test_bandwidth_is_that_of_the_lowest_sample_rate_on_the_way(rate, level) -> None:
    assert 0.45 * rate < measure_bandwidth(limited(level * WHITE, rate), MASTER_RATE) < 0.51 * rate
    assert measure_bandwidth(WHITE, MASTER_RATE) == MASTER_RATE // 2


def test_bandwidth_of_speech_in_a_room_is_that_of_the_speech(railway) -> None:
    """The voice ends at 8 kHz, the noise that was laid under it does not."""
    for start in range(0, 32, 4):
        clip = railway.samples[start * MASTER_RATE : (start + 4) * MASTER_RATE]
        assert 7000 < measure_bandwidth(clip, MASTER_RATE) <= 8000
        assert 3500 < measure_bandwidth(limited(clip, 8000), MASTER_RATE) <= 4000


def test_a_tone_or_clicks_do_not_raise_the_bandwidth() -> None:
    narrow = limited(WHITE, 8000)
    line = 0.001 * np.sin(2 * np.pi * 11000 * np.arange(len(narrow)) / MASTER_RATE).astype(np.float32)
    clicks = narrow.copy()
    clicks[::MASTER_RATE] = 0.9
    for sound in (narrow + line, clicks):
        assert 3600 < measure_bandwidth(sound, MASTER_RATE) <= 4000


def test_silence_and_very_short_sounds_have_bandwidth_zero() -> None:
    assert measure_bandwidth(np.zeros(MASTER_RATE, np.float32), MASTER_RATE) == 0
    assert measure_bandwidth(WHITE[:1000], MASTER_RATE) == 0


def test_the_bandwidth_of_a_long_recording_is_estimated_from_parts() -> None:
    assert 7500 < measure_bandwidth(np.tile(limited(WHITE, 16000), 50), MASTER_RATE) < 8100
