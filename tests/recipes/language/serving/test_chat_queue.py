"""Tests of `overtone.recipes.language.serving.chat_queue`: answers of concurrent requests, their counters, and a model that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from overtone.recipes.language.answer_generation import LoadedModel, generate_answer
from overtone.recipes.language.serving.chat_batch import AnswerRequest, ChatBatch
from overtone.recipes.language.serving.chat_queue import ChatQueue, ServedModel, find_batching_obstacle, open_lane
from overtone.recipes.serving.continuous_batch_scheduler import QueueFullError
from overtone.recipes.serving.running_batch_interface import OneAtATime
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

GREEDY = CodeSampler(True)


def run(loaded: LoadedModel, scenario: Callable[[ChatQueue], Awaitable[None]], room: int = 16) -> None:
    async def run_scenario() -> None:
        model = ServedModel(loaded, 0, 96, 60)
        chats = ChatQueue({"m": model}, {"m": open_lane(model, 4, find_batching_obstacle(loaded, 4))}, room, 60)
        try:
            await asyncio.wait_for(scenario(chats), 100)
            assert chats.pending == 0
        finally:
            await asyncio.to_thread(chats.close)

    asyncio.run(run_scenario())


def read_metric(chats: ChatQueue, name: str, **labels: str) -> float:
    value = chats.metrics.registry.get_sample_value(f"overtone_chat_{name}", {"model": "m", **labels})
    assert value is not None
    return value


async def read(chats: ChatQueue, request: AnswerRequest) -> str:
    return "".join([one.piece.text async for one in chats.answer("m", request) if one.piece])


def test_concurrent_answers_are_those_of_the_verb_generate(loaded: LoadedModel) -> None:
    prompts = [[5 + number, *range(9, 9 + number)] for number in range(10)]

    async def scenario(chats: ChatQueue) -> None:
        found = await asyncio.gather(*(read(chats, AnswerRequest(prompt, GREEDY, 0, 5 + len(prompt))) for prompt in prompts))
        assert found == [generate_answer(loaded, prompt, 5 + len(prompt)).text for prompt in prompts]
        assert read_metric(chats, "requests_total", outcome="completed") == 10
        assert read_metric(chats, "batch_requests_total") > 1.5 * read_metric(chats, "batch_steps_total")
        assert read_metric(chats, "prompt_tokens_total") == sum(map(len, prompts))
        assert read_metric(chats, "answer_tokens_total") >= 10 * 6
        assert read_metric(chats, "time_to_first_text_seconds_count") == 10

    run(loaded, scenario)


def test_a_client_that_leaves_is_counted_and_frees_its_place(loaded: LoadedModel) -> None:
    async def scenario(chats: ChatQueue) -> None:
        async with aclosing(chats.answer("m", AnswerRequest([9] * 12, GREEDY, 0, 80))) as answer:
            await anext(answer)
        assert read_metric(chats, "requests_total", outcome="cancelled") == 1
        assert await read(chats, AnswerRequest([5], GREEDY, 0, 3))

    run(loaded, scenario)


def test_a_step_that_fails_ends_its_requests_and_no_others(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = type(loaded.model).forward

    async def scenario(chats: ChatQueue) -> None:
        monkeypatch.setattr(type(loaded.model), "forward", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await read(chats, AnswerRequest([5], GREEDY, 0, 3))
        monkeypatch.setattr(type(loaded.model), "forward", forward)
        assert await asyncio.gather(*(read(chats, AnswerRequest([5], GREEDY, 0, 3)) for _ in range(6)))
        assert read_metric(chats, "requests_total", outcome="failed") == 1

    run(loaded, scenario)


def test_a_full_queue_is_counted(loaded: LoadedModel) -> None:
    async def scenario(chats: ChatQueue) -> None:
        chats._scheduler._accepted["m"] += 4
        with pytest.raises(QueueFullError):
            await read(chats, AnswerRequest([5], GREEDY, 0, 3))
        chats._scheduler._accepted["m"] -= 4
        assert read_metric(chats, "requests_total", outcome="queue_full") == 1

    run(loaded, scenario, room=0)


def test_the_lane_of_a_model(loaded: LoadedModel) -> None:
    model = ServedModel(loaded, 0, 96, 60)
    assert find_batching_obstacle(loaded, 1) == "--batch 1" and isinstance(open_lane(model, 1, "--batch 1"), OneAtATime)
    assert find_batching_obstacle(loaded, 8) is None and isinstance(open_lane(model, 8, None), ChatBatch)
