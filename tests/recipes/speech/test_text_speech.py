"""A text of any length as one wave, whole or in chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.speech.text_speech import prepare_text, speak_passages, stream_passages
from tests.recipes.voice_clone.tones import RATE, TONES, tone_folder

LONG = " ".join(f"This is sentence number {number} of a long text." for number in range(12))


def test_a_long_text_is_spoken_in_passages_with_pauses(tmp_path: Path) -> None:
    voice = TONES.inspect(tone_folder(tmp_path / "tones")).open()
    prepared = prepare_text(voice, SpeechRequest(LONG, "low"), 20.0, "--text")
    assert len(prepared.passages) > 1 and " ".join(passage.text for passage in prepared.passages) == LONG
    sampling = SpeechSampling(max_seconds=60.0)
    whole = speak_passages(voice, prepared.passages, sampling)
    letters = sum(len(passage.text) for passage in prepared.passages)
    assert whole.ended and len(whole.wave) > letters * RATE / 20, "with pauses between the passages"
    stream, chunks = stream_passages(voice, prepared.passages, sampling), []
    with pytest.raises(StopIteration) as end:
        while True:
            chunks.append(next(stream))
    assert np.array_equal(np.concatenate(chunks), whole.wave) and np.array_equal(end.value.value.wave, whole.wave)
    assert end.value.value.ended


def test_a_text_is_cleaned_and_checked_before_anything_is_spoken(tmp_path: Path) -> None:
    folder = TONES.inspect(tone_folder(tmp_path / "tones"))
    prepared = prepare_text(folder, SpeechRequest("**Hello** 👋", "low"), 20.0, "--text")
    assert prepared.request.text == "Hello" and prepared.cleaned.describe_removed() == "1 emoji, 1 markup"
    with pytest.raises(UserError, match="speaker middle"):
        prepare_text(folder, SpeechRequest("Hello", "middle"), 20.0, "--text")
    with pytest.raises(UserError, match="the text"):
        prepare_text(folder, SpeechRequest("👋", "low"), 20.0, "the text")
