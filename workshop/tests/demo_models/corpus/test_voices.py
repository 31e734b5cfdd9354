"""The synthetic voices: trimmed, normalized and reproducible."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from overtone.finetune.errors import UserError
from workshop.demo_models.corpus.voices import (
    EDGE_S,
    KNOWN_VOICES,
    NEW_VOICE,
    PACKAGES,
    PEAK,
    RATE,
    VOICES,
    SyntheticVoice,
    list_phones,
    speak,
)

TEXT = "The captain closes the door."


@pytest.mark.parametrize("voice", VOICES, ids=lambda voice: voice.name)
def test_a_voice_is_reproducible_trimmed_and_normalized(voice: SyntheticVoice) -> None:
    if not shutil.which(voice.engine):
        pytest.skip(f"needs {voice.engine} (Debian: apt-get install {PACKAGES[voice.engine]})")
    wave = speak(voice, TEXT)
    np.testing.assert_array_equal(wave, speak(voice, TEXT))
    assert np.abs(wave).max() == pytest.approx(PEAK, rel=1e-3)
    assert 1.0 < len(wave) / RATE < 3.0
    edge = round(EDGE_S * RATE / 4)
    assert np.abs(wave[:edge]).max() < PEAK / 10
    assert len(speak(voice, TEXT, speed=1.18)) < 0.93 * len(wave)


def test_the_new_voice_is_not_a_known_voice() -> None:
    assert NEW_VOICE not in KNOWN_VOICES
    assert len({voice.name for voice in VOICES}) == len(VOICES) == 7


@pytest.mark.skipif(not shutil.which("flite"), reason="needs flite (Debian: apt-get install flite)")
def test_phones_are_american_english() -> None:
    assert list_phones("teacher") == ["t", "iy", "ch", "er"]


def test_a_missing_synthesizer_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match=r"flite command is missing.*apt-get install flite"):
        speak(NEW_VOICE, TEXT)
