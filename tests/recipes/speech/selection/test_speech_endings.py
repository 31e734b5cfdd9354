"""Tests of `overtone.recipes.speech.selection.speech_endings`."""

from __future__ import annotations

import numpy as np
import pytest

from overtone.recipes.speech.selection.speech_endings import measure_ending

RATE = 24_000
TONE = (0.3 * np.sin(np.arange(RATE) / 20)).astype(np.float32)
"""One second."""
FADED = TONE * np.linspace(1, 0, RATE, dtype=np.float32) ** 2


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


@pytest.mark.parametrize(
    ("clip", "seconds", "good"),
    [
        (np.concatenate([TONE, silence(0.3)]), 0.3, True),
        (np.concatenate([TONE, silence(1.5)]), 1.5, False),
        (TONE, 0.0, False),
        (FADED, 0.1, True),
        (silence(2.0), 2.0, False),
        (silence(0.0), 0.0, False),
    ],
    ids=["silence", "long silence", "cut", "faded", "silent", "empty"],
)
def test_speech_ends_after_its_last_sound_and_soon(clip: np.ndarray, seconds: float, good: bool) -> None:
    found = measure_ending(clip)
    assert found.silence == pytest.approx(seconds, abs=0.021) and found.is_good(True) == good
    assert not found.is_good(False), "cut off at the time limit"


def test_the_level_of_the_end_is_relative_to_the_loudest_part() -> None:
    quiet = np.concatenate([TONE, 0.1 * TONE])
    assert measure_ending(quiet).level == pytest.approx(-20, abs=0.5) == pytest.approx(measure_ending(0.1 * quiet).level, abs=0.5)
