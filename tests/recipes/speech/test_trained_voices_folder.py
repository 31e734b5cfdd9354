"""Tests of `overtone.recipes.speech.trained_voices_folder`. Damaged files are in the tests of codec_lm, which reads a folder with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from overtone.data_prep.manifest import AUTO
from overtone.finetune.errors import UserError
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.trained_voices_folder import TrainedVoicesFolder, read_languages, read_positions


@dataclass(frozen=True)
class LetterFolder(TrainedVoicesFolder):
    def count_tokens(self, text: str, request: SpeechRequest) -> int:
        return len(text)


def make_folder(folder: Path) -> LetterFolder:
    return LetterFolder(folder, {}, {"ann": "german", "bob": AUTO}, 20)


def test_a_voice_speaks_the_language_of_its_clips(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    assert (folder.choose_language(None, "ann"), folder.choose_language("DE", "ann"), folder.choose_language(None, "bob")) == (
        "german",
        "german",
        None,
    )
    with pytest.raises(UserError, match="--language en: this model takes no language; it speaks that of its training data, german; remove"):
        folder.choose_language("en", "ann")
    with pytest.raises(UserError, match="that of its training data; remove"):
        folder.choose_language("en", "bob")


def test_speech_takes_more_positions_than_its_text(tmp_path: Path) -> None:
    make_folder(tmp_path).check(SpeechRequest("a" * 10, "ann"))
    with pytest.raises(UserError, match="a text of 11 tokens is too long for this model, which takes 10"):
        make_folder(tmp_path).check(SpeechRequest("a" * 11, "ann"))


def test_a_folder_without_speakers_says_so(tmp_path: Path) -> None:
    assert read_languages(tmp_path) == {} and read_positions({"max_position_embeddings": 20}, tmp_path) == 20
    with pytest.raises(UserError, match="names no speakers; train it on a voice"):
        LetterFolder(tmp_path, {}, {}, 20).check(SpeechRequest("a", None))
