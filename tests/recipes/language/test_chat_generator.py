"""Tests of `overtone.recipes.language.chat_generator`: the learned answers, in pieces, and refusals before the first piece."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.language.chat_generator import ChatGenerator
from overtone.recipes.language.text_generator import AnswerSettings, TextGenerator
from tests.recipes.llm_sft import tiny_runs


@pytest.fixture(scope="module")
def model(exported: Path) -> ChatGenerator:
    return ChatGenerator(exported)


def collect(stream: Generator[str, None, bool]) -> tuple[str, bool]:
    pieces = list[str]()
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return "".join(pieces), end.value


def test_texts_and_conversations_get_the_learned_answer(model: ChatGenerator) -> None:
    assert isinstance(model, TextGenerator)
    for prompt, answer in tiny_runs.CHATS:
        assert collect(model.stream_answer(prompt, None, AnswerSettings())) == (answer, True)
        assert collect(model.stream_answer([{"role": "user", "content": prompt}], None, AnswerSettings())) == (answer, True)
    text, ended = collect(model.stream_answer(tiny_runs.CHATS[0][0], None, AnswerSettings(max_new_tokens=2)))
    assert tiny_runs.CHATS[0][1].startswith(text) and not ended


def test_sampling_depends_on_the_seed_alone(model: ChatGenerator) -> None:
    before = torch.random.get_rng_state()
    hot = [collect(model.stream_answer("Who?", None, AnswerSettings(20, 3.0, seed=seed))) for seed in (1, 1, 2)]
    assert hot[0] == hot[1] != hot[2]
    assert torch.equal(torch.random.get_rng_state(), before), "the random numbers of the program are its own"


def test_what_cannot_be_answered_is_refused_at_once(model: ChatGenerator) -> None:
    turn = {"role": "user", "content": "Hello"}
    for prompt, system, settings, message in (
        (" ", None, AnswerSettings(), "the prompt is empty"),
        ("x" * 500, None, AnswerSettings(), "and the model has 96 positions; shorten the prompt"),
        ("a", None, AnswerSettings(max_new_tokens=0), "--max-new-tokens 0: must be at least 1"),
        ("a", None, AnswerSettings(temperature=0.001), "--temperature 0.001 is above 0 and below 0.01"),
        ([turn, {"role": "assistant", "content": "Hi"}], None, AnswerSettings(), "the last message is the assistant's"),
        ([{"role": "system", "content": "Be."}, turn], "Be.", AnswerSettings(), "the row has a system message and --system gives another"),
        ([{"role": "user"}], None, AnswerSettings(), r"messages\[0\]"),
        ([], None, AnswerSettings(), "messages"),
    ):
        with pytest.raises(UserError, match=message):
            model.stream_answer(prompt, system, settings)


def test_a_closed_model_answers_no_more(exported: Path) -> None:
    model = ChatGenerator(exported)
    model.close()
    with pytest.raises(UserError, match="the model is closed"):
        model.stream_answer("Hello", None, AnswerSettings())
