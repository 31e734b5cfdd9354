"""Tests of `overtone.recipes.language.serving.chat_batch`: answers in a batch equal those one at a time, with the same ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from overtone.finetune.errors import UserError
from overtone.recipes.language.answer_generation import LoadedModel
from overtone.recipes.language.serving.chat_batch import AnswerPiece, AnswerRequest, ChatBatch
from overtone.recipes.language.serving.ragged_transformers_cache import StockRowCache
from overtone.recipes.language.serving.single_answer_generation import generate_tokens, stream_answer
from overtone.recipes.serving.running_batch_interface import LENGTH, STOP, OneAtATime, RunningBatch
from overtone.recipes.speech.decoding.token_sampling import CodeSampler
from tests.recipes.speech.decoding.recorded_graphs import RecordedGraph, imitate_graphs

GREEDY = CodeSampler(True)


def run(lane: RunningBatch[AnswerRequest, AnswerPiece], request: AnswerRequest) -> tuple[str, int, str]:
    """Text, number of tokens, and end."""
    slot, text, tokens = lane.join(request), "", 0
    while True:
        progress = lane.step()[slot]
        if progress.piece is not None:
            text, tokens = text + progress.piece.text, progress.piece.tokens
        if progress.over is not None:
            return text, tokens, progress.over


def make_requests(loaded: LoadedModel) -> list[AnswerRequest]:
    """Cut off, ended by a token, by a stop string, and by one that the text does not contain."""
    sampled = [AnswerRequest([5, 6, 7, number], CodeSampler(False, 1.4), number, 60) for number in range(12)]
    text = run(ChatBatch(loaded, 4, 60, 96), replace(sampled[0], limit=40))[0]
    assert len(text) > 20
    stops = [(text[12:15], text[5:9]), ("no",)]
    return [AnswerRequest([9] * 12, GREEDY, 0, 25), *sampled, *(replace(sampled[0], stops=one) for one in stops)]


def test_both_ways_give_the_same_answers(loaded: LoadedModel) -> None:
    requests = make_requests(loaded)
    batch, single = ChatBatch(loaded, 4, 60, 96), OneAtATime[AnswerRequest, AnswerPiece](lambda request: stream_answer(loaded, request))
    found = [run(batch, request) for request in requests]
    assert found == [run(single, request) for request in requests]
    assert {over for _, _, over in found} == {STOP, LENGTH}
    stopped, text = found[-2], found[1][0]
    assert stopped[2] == STOP and text.startswith(stopped[0]) and stopped[0] == text[: text.find(text[5:9])] and stopped[1] < found[1][1]
    assert found[-1] == found[1] and all(tokens == 25 for _, tokens, over in found[:1] if over == LENGTH)


def test_an_answer_that_a_token_ends_counts_that_token(loaded: LoadedModel) -> None:
    [first] = [*generate_tokens(loaded, AnswerRequest([5, 6], GREEDY, 0, 1))]
    ending = LoadedModel(loaded.model, loaded.tokenizer, [first])
    for lane in (ChatBatch(ending, 2, 60, 96), OneAtATime[AnswerRequest, AnswerPiece](lambda request: stream_answer(ending, request))):
        assert run(lane, AnswerRequest([5, 6], GREEDY, 0, 9)) == ("", 1, STOP)


def test_a_request_that_leaves_frees_its_row(loaded: LoadedModel) -> None:
    batch, request = ChatBatch(loaded, 2, 60, 96), AnswerRequest([9] * 12, GREEDY, 0, 40)
    rows = [batch.join(request) for _ in range(2)]
    with pytest.raises(RuntimeError, match="taken"):
        batch.join(request)
    batch.leave(rows[0])
    assert batch.join(request) == rows[0]


def test_the_steps_of_all_sampling_settings_are_captured_before_the_first_request(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitate_graphs(monkeypatch)
    batch = ChatBatch(loaded, 4, 60, 96)
    captured = RecordedGraph.captured
    samplers = (GREEDY, CodeSampler(False, 1.4), CodeSampler(False, 0.7, top_p=0.8))
    for together in (*((one,) for one in samplers), samplers):
        for sampler in together:
            batch.join(AnswerRequest([9] * 12, sampler, 0, 6))
        while batch.step():
            pass
    assert RecordedGraph.captured == captured and RecordedGraph.replayed >= 12


def test_answers_too_long_for_the_memory_name_their_option(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    imitate_graphs(monkeypatch)
    monkeypatch.setattr("overtone.recipes.language.serving.continuous_batching.find_graph_difference", lambda _: None)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(StockRowCache, "_grow", fail)
    with pytest.raises(UserError, match=r"so many requests of 60 tokens; choose a smaller --batch or a smaller --max-new-tokens$"):
        ChatBatch(loaded, 8, 60, 96)


def test_room_for_answers_is_limited_to_the_context(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, grow = list[int](), StockRowCache._grow

    def record(cache: StockRowCache, size: int) -> None:
        sizes.append(size)
        grow(cache, size)

    monkeypatch.setattr(StockRowCache, "_grow", record)
    batch = ChatBatch(loaded, 4, 60, 1400)
    for limit in (400, 600):
        batch.leave(batch.join(AnswerRequest([9] * 12, GREEDY, 0, limit)))
    batch.leave(batch.join(AnswerRequest([9] * 12, GREEDY, 0, 1050)))
    assert sizes == [512, 1024, 1536]
