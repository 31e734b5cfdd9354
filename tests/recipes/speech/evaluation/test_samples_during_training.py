"""Tests of `overtone.recipes.speech.evaluation.samples_during_training`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from matplotlib.image import imread

from overtone.finetune.errors import UserError
from overtone.finetune.training import setup
from overtone.recipes.speech.evaluation import samples_during_training
from overtone.recipes.speech.interface import SpeechRequest, SpeechResult, SpeechSampling
from overtone.recipes.voice_clone.recipe import RECIPE


def test_samples_are_reproducible_and_have_audio_and_a_spectrogram(
    fresh: Any, export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_during_training, "SAMPLING", SpeechSampling(max_seconds=0.4))
    folder = export(fresh, "custom_voice", tmp_path / "voice")
    assert RECIPE.inference.sample is not None
    first, again = (RECIPE.inference.sample(folder, ["She counted the boats.", "Bert|Never."]) for _ in range(2))
    assert first == again
    assert first[0].text.startswith("anna, 0.") and first[1].text.startswith("bert, 0.")
    for one in first:
        samples, rate = soundfile.read(io.BytesIO(one.sound))
        assert rate == 24_000 and len(samples) / rate == one.numbers["seconds"] > 0
        assert imread(io.BytesIO(one.picture)).shape[0] == 80


def test_the_speaking_rate_is_only_of_speech_that_ended(voice: np.ndarray) -> None:
    ended = samples_during_training.make_answer(SpeechRequest("x" * 28, "anna"), SpeechResult(voice, 24_000, True))
    assert ended.text == "anna, 2.00 s, 14.0 characters per second"
    assert ended.numbers == {"seconds": 2.0, "silence": 0.0, "ended": 1.0, "characters_per_second": 14.0}
    cut = samples_during_training.make_answer(SpeechRequest("x" * 28, None), SpeechResult(voice, 24_000, False))
    assert cut.text == "the only voice, 2.00 s, cut off at the time limit"
    assert cut.numbers == {"seconds": 2.0, "silence": 0.0, "ended": 0.0}


@pytest.fixture
def voice() -> np.ndarray:
    return np.sin(np.arange(48_000) / 20).astype(np.float32) / 2


def test_empty_audio_is_an_answer_without_a_file() -> None:
    mute = samples_during_training.make_answer(SpeechRequest("Hi.", None), SpeechResult(np.zeros(0, np.float32), 24_000, True))
    assert mute.text == "the only voice, 0.00 s, silent"
    assert mute.sound == mute.picture == b"" and mute.numbers == {"seconds": 0.0, "silence": 0.0, "ended": 1.0}


@pytest.mark.parametrize(
    ("prompt", "message"), [("anna|", "has no text"), ("  ", "has no text"), ("zed|Hello.", "not in the data; speakers: anna, bert")]
)
def test_bad_prompts_are_refused_before_the_run(prompt: str, message: str) -> None:
    samples_during_training.check_prompts(["Hello.", "Anna|Hello."], ["bert", "anna"])
    with pytest.raises(UserError, match=message):
        samples_during_training.check_prompts([prompt], ["bert", "anna"])


def test_prompts_are_checked_when_the_model_is_loaded(fresh: Any) -> None:
    config = fresh.config.model_copy(update={"sample": type(fresh.config.sample)(every=5, prompts=("zed|Hello.",))})
    with pytest.raises(UserError, match="sample.prompts: 'zed|Hello.' names a speaker who is not in the data"):
        setup.load_shape(config, RECIPE)
