"""Copies of a sound have the same waveform in every word, other sounds do not; the place of one in the other need only be nearly known."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.clips.waveform_agreement import RATE, SEARCH, agrees_throughout, prepare_waveform

SECOND = MASTER_RATE


@pytest.fixture(scope="module")
def sound(railway) -> np.ndarray:
    return railway.samples[: 4 * SECOND]


def test_a_copy_agrees_at_any_level_and_nearly_known_offset(sound) -> None:
    one, other = prepare_waveform(sound), prepare_waveform(0.01 * sound[SECOND:])
    for error in (-SEARCH, 0, SEARCH):
        assert agrees_throughout(one, other, RATE + error)
        assert agrees_throughout(other, one, -RATE + error)
    assert not agrees_throughout(one, other, 2 * RATE)


def test_a_copy_by_another_clock_agrees(sound) -> None:
    """200 millionths faster."""
    other = soxr.resample(sound, 5000, 4999)
    assert agrees_throughout(prepare_waveform(sound), prepare_waveform(other), 0)


def test_a_tenth_of_a_second_of_other_sound_is_found(sound, railway) -> None:
    power = np.convolve(np.square(sound), np.ones(SECOND // 10), "valid")
    place = int(power.argmax())
    changed = sound.copy()
    changed[place : place + SECOND // 10] = railway.samples[10 * SECOND :][: SECOND // 10]
    assert not agrees_throughout(prepare_waveform(sound), prepare_waveform(changed), 0)


def test_pauses_and_little_overlap_say_nothing(sound) -> None:
    noise = np.random.default_rng(0).normal(0, 1e-3 * sound.std(), (2, len(sound)))
    quiet = [prepare_waveform(np.where(np.arange(len(sound)) < 2 * SECOND, sound, 0) + one) for one in noise]
    assert agrees_throughout(*quiet, 0)
    assert agrees_throughout(quiet[0], quiet[1][: RATE // 20], 0)
    silence = np.zeros(RATE, np.float32)
    assert agrees_throughout(silence, silence, 0)
