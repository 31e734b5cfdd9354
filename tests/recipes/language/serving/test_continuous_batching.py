"""Tokens of requests that join and leave at random equal those of each request alone."""

from __future__ import annotations

import random

import pytest
import torch

from overtone.recipes.language.answer_generation import LoadedModel, generate_answer
from overtone.recipes.language.serving.chat_batch import AnswerRequest
from overtone.recipes.language.serving.continuous_batching import TokenBatch
from overtone.recipes.language.serving.ragged_transformers_cache import StockRowCache
from overtone.recipes.language.serving.single_answer_generation import generate_tokens
from overtone.recipes.speech.decoding.token_sampling import CodeSampler
from tests.recipes.speech.decoding.recorded_graphs import RecordedGraph, imitate_graphs

SLOTS = 4
SAMPLERS = (CodeSampler(True), CodeSampler(False, 1.3), CodeSampler(False, 0.7, top_p=0.8))
Answers = dict[int, tuple[list[int], bool]]


def make_requests(vocabulary: int) -> list[AnswerRequest]:
    chance = random.Random(0)
    return [
        AnswerRequest(
            [chance.randrange(3, vocabulary) for _ in range(1 + 7 * number % 23)], SAMPLERS[number % 3], number, 1 + 11 * number % 60
        )
        for number in range(24)
    ]


def answer_alone(loaded: LoadedModel, requests: list[AnswerRequest]) -> Answers:
    """By transformers' own generation, one request at a time."""
    found: Answers = {}
    for number, request in enumerate(requests):
        tokens = [*generate_tokens(loaded, request)]
        ended = tokens[-1] in loaded.stop_ids
        found[number] = (tokens[:-1] if ended else tokens, ended)
    return found


def prove(loaded: LoadedModel, schedules: int) -> None:
    requests = make_requests(len(loaded.tokenizer))
    alone = answer_alone(loaded, requests)
    assert {ended for _, ended in alone.values()} == {True, False}
    finished, left, together = run_schedules(TokenBatch(loaded.model, loaded.stop_ids, SLOTS), requests, alone, schedules)
    assert finished >= 4 * schedules and left >= schedules // 4 and {1, 2, 3, 4} <= together


def run_schedules(batch: TokenBatch, requests: list[AnswerRequest], alone: Answers, schedules: int) -> tuple[int, int, set[int]]:
    """Assert the tokens of every request that was not stopped; returns how many finished, how many left, and how many ran together."""
    finished, left, together = 0, 0, set[int]()
    for seed in range(schedules):
        chance = random.Random(seed)
        waiting = chance.sample(range(len(requests)), len(requests) // 2)
        running: dict[int, tuple[int, list[int]]] = {}
        while waiting or running:
            while waiting and len(running) < SLOTS and chance.random() < 0.6:
                number = waiting.pop()
                request = requests[number]
                running[batch.join(request.prompt, request.sampler, request.seed, request.limit)] = (number, [])
            together.add(len(running))
            for row, frame in batch.step().items():
                number, tokens = running[row]
                if frame.codes is not None:
                    tokens.append(int(frame.codes[0]))
                if frame.over:
                    assert (tokens, frame.ended) == alone[number], f"schedule {seed}, request {number} in row {row}"
                    del running[row]
                    finished += 1
            if running and chance.random() < 0.1:
                row = chance.choice(sorted(running))
                batch.leave(row)
                del running[row]
                left += 1
    return finished, left, together


def test_tokens_do_not_depend_on_the_other_requests(loaded: LoadedModel) -> None:
    prove(loaded, 10)


def test_captured_steps_give_the_tokens_of_transformers_and_are_kept(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = make_requests(len(loaded.tokenizer))[:9]
    alone = answer_alone(loaded, requests)
    imitate_graphs(monkeypatch)
    batch = TokenBatch(loaded.model, loaded.stop_ids, SLOTS)
    monkeypatch.setattr(RecordedGraph, "captured", 0)
    finished, _, together = run_schedules(batch, requests, alone, 1)
    assert finished >= 3 and len(together) >= 2
    captured = RecordedGraph.captured
    run_schedules(batch, requests, alone, 1)
    assert RecordedGraph.captured == captured and RecordedGraph.replayed > 5 * captured > 0


def test_answers_of_a_model_that_counts_in_python_are_not_captured(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imitate_graphs(monkeypatch)
    read, calls, name = StockRowCache.read_tokens, [], "exports/mine"
    monkeypatch.setattr(loaded.model, "name_or_path", name)

    def read_and_count(cache: StockRowCache, tokens: torch.Tensor, size: int) -> torch.Tensor:
        calls.append(1)
        return read(cache, tokens, size) * (len(calls) != 2)  # the second step is the one that is captured

    def read_without_memory(cache: StockRowCache, tokens: torch.Tensor, size: int) -> torch.Tensor:
        raise torch.OutOfMemoryError

    def read_a_value(cache: StockRowCache, tokens: torch.Tensor, size: int) -> torch.Tensor:
        return read(cache, tokens, size) + int(tokens.sum()) * 0

    for other, reason in (
        (read_and_count, "its scores in a batch differ"),
        (read_a_value, "a step cannot be captured"),
        (read_without_memory, "the GPU has no memory for the comparison"),
    ):
        monkeypatch.setattr(StockRowCache, "read_tokens", other)
        batch = TokenBatch(loaded.model, loaded.stop_ids, SLOTS)
        assert f"{name}: answers are generated without CUDA graphs, which is slower: {reason}" in capsys.readouterr().err
        captured = RecordedGraph.captured
        batch.capture_frames(60, CodeSampler(greedy=True))
        assert RecordedGraph.captured == captured


@pytest.mark.slow
@pytest.mark.ci
def test_tokens_do_not_depend_on_the_other_requests_in_200_schedules(loaded: LoadedModel) -> None:
    prove(loaded, 200)


def test_greedy_answers_are_those_of_the_verb_generate(loaded: LoadedModel) -> None:
    batch = TokenBatch(loaded.model, loaded.stop_ids, SLOTS)
    prompts = [[5, 6, 7], [9] * 20, [11]]
    rows = [batch.join(prompt, CodeSampler(True), 0, 30) for prompt in prompts]
    found = {row: list[int]() for row in rows}
    while running := batch.step():
        for row, frame in running.items():
            found[row] += [] if frame.codes is None else [int(frame.codes[0])]
    for row, prompt in zip(rows, prompts, strict=True):
        expected = generate_answer(loaded, prompt, 30).text
        assert loaded.tokenizer.decode(found[row], skip_special_tokens=True, clean_up_tokenization_spaces=False) == expected


def test_a_request_without_memory_for_its_prompt_leaves_no_row(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = TokenBatch(loaded.model, loaded.stop_ids, SLOTS)

    def fail(*_: object) -> torch.Tensor:
        raise MemoryError

    monkeypatch.setattr(batch.cache, "read_prompt", fail)
    for _ in range(SLOTS + 1):
        with pytest.raises(MemoryError):
            batch.join_or_free(lambda: batch.join([5], CodeSampler(True), 0, 3))
