"""Tests of `overtone.recipes.speech.evaluation.audio_measures` with synthetic audio."""

from __future__ import annotations

import numpy as np
import pytest

from overtone.recipes.speech.evaluation import audio_measures

RATE = 24_000


def tone(seconds: float, size: float = 0.5) -> np.ndarray:
    return (size * np.sin(2 * np.pi * 220 * np.arange(round(seconds * RATE)) / RATE)).astype(np.float32)


def test_pauses_are_silent_and_quiet_speech_is_not() -> None:
    pause = np.zeros(RATE // 2, np.float32)
    found = audio_measures.measure(np.concatenate([tone(1.0), pause, tone(0.5, size=0.05)]))
    assert found.seconds == 2.0 and found.silent_seconds == 0.5 and found.voiced_seconds == 1.5 and found.clipped_seconds == 0.0


@pytest.mark.parametrize("odd", [1, 100, 479])
def test_a_partial_last_frame_counts_by_its_length(odd: int) -> None:
    """20 ms are 480 samples; few clips end with a whole frame."""
    quiet_end = np.concatenate([tone(1.0), np.zeros(480 + odd, np.float32)])
    assert audio_measures.count_silent_samples(quiet_end) == 480 + odd
    found = audio_measures.measure(np.zeros(480 + odd, np.float32))
    assert found.silent_seconds == found.seconds == (480 + odd) / RATE and found.voiced_seconds == 0.0
    loud_end = np.concatenate([np.zeros(480, np.float32), np.full(odd, 0.02, np.float32)])
    assert audio_measures.count_silent_samples(loud_end) == 480, "the power of a short frame is that of its own samples, without padding"


def test_a_hiss_below_40_db_is_silence() -> None:
    hiss = (0.5 * 10 ** (-45 / 20) * np.random.default_rng(0).standard_normal(RATE) / np.sqrt(2)).astype(np.float32)
    assert audio_measures.measure(np.concatenate([tone(1.0), hiss])).silent_seconds == pytest.approx(1.0, abs=0.05)


def test_a_silent_clip_is_entirely_silent() -> None:
    assert audio_measures.measure(np.zeros(RATE, np.float32)).silent_seconds == 1.0
    assert audio_measures.measure(tone(1.0, size=1e-4)).silent_seconds == 1.0
    assert audio_measures.measure(np.zeros(0, np.float32)).seconds == 0.0


def test_clipped_samples_are_counted() -> None:
    wave = tone(1.0)
    wave[100:220] = 1.0
    assert audio_measures.measure(wave).clipped_seconds == pytest.approx(120 / RATE)
