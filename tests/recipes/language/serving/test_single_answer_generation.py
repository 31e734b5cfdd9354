"""Tests of `overtone.recipes.language.serving.single_answer_generation`; `test_chat_batch` compares its answers with those in a batch."""

from __future__ import annotations

import threading

import pytest

from overtone.recipes.language.answer_generation import LoadedModel
from overtone.recipes.language.serving.chat_batch import AnswerRequest
from overtone.recipes.language.serving.single_answer_generation import stream_answer
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

GREEDY = CodeSampler(True)


def test_closing_a_single_answer_stops_the_model(loaded: LoadedModel) -> None:
    pieces = stream_answer(loaded, AnswerRequest([9] * 12, GREEDY, 0, 80))
    next(pieces)
    pieces.close()
    assert not [one for one in threading.enumerate() if one.name == "one answer"]


def test_an_error_of_the_model_reaches_the_request(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded.model, "generate", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(stream_answer(loaded, AnswerRequest([5], GREEDY, 0, 3)))
