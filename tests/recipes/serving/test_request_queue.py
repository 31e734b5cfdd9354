"""Tests of `overtone.recipes.serving.request_queue`: how each request's end and its first part are counted. The queues of speech and of
chats have
tests of their own, with models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing

import pytest
from prometheus_client import CollectorRegistry

from overtone.recipes.serving.continuous_batch_scheduler import DeadlineError, ServerClosedError
from overtone.recipes.serving.prometheus_metrics import OUTCOMES, ServerMetrics
from overtone.recipes.serving.request_queue import RequestQueue
from overtone.recipes.serving.running_batch_interface import OneAtATime, StepProgress

CountedQueue = RequestQueue[str, int]


def generate(request: str) -> Iterator[int]:
    """Three numbers; nothing for `silent`; an error after the first for `bad`; endless ones for `endless`."""
    if request == "silent":
        return
    yield 0
    if request == "bad":
        raise ValueError("bad request")
    number = 1
    while request == "endless" or number < 3:
        yield number
        number += 1


def run(scenario: Callable[[CountedQueue], Awaitable[None]], deadline_seconds: float = 60) -> CollectorRegistry:
    async def run_scenario() -> CollectorRegistry:
        metrics = ServerMetrics("chat", "text", frozenset({"/v1/chat/completions"}), ("m",), {})
        queue = CountedQueue({"m": OneAtATime[str, int](generate)}, metrics, 4, deadline_seconds)
        try:
            await scenario(queue)
            assert queue.pending == 0
        finally:
            await asyncio.to_thread(queue.close)
        return metrics.registry

    return asyncio.run(run_scenario())


async def read(queue: CountedQueue, request: str) -> list[StepProgress[int]]:
    return [progress async for progress in queue.generate("m", request, "client")]


def list_outcomes(registry: CollectorRegistry) -> dict[str, float]:
    counts = {outcome: read_count(registry, "requests_total", outcome=outcome) for outcome in OUTCOMES}
    return {outcome: count for outcome, count in counts.items() if count}


def read_count(registry: CollectorRegistry, name: str, **labels: str) -> float:
    value = registry.get_sample_value(f"overtone_chat_{name}", {"model": "m", **labels})
    assert value is not None
    return value


def test_a_result_is_passed_on_and_its_first_part_is_counted_once() -> None:
    async def scenario(queue: CountedQueue) -> None:
        assert [progress.piece for progress in await read(queue, "three")] == [0, 1, 2, None]

    registry = run(scenario)
    assert list_outcomes(registry) == {"completed": 1} and read_count(registry, "time_to_first_text_seconds_count") == 1
    assert read_count(registry, "batch_steps_total") == read_count(registry, "batch_requests_total") == 4
    assert registry.get_sample_value("overtone_chat_queue_limit") == 4 and registry.get_sample_value("overtone_chat_queue_depth") == 0


def test_an_empty_result_has_no_first_part() -> None:
    async def scenario(queue: CountedQueue) -> None:
        assert [progress.over for progress in await read(queue, "silent")] == ["stop"]

    registry = run(scenario)
    assert list_outcomes(registry) == {"completed": 1} and read_count(registry, "time_to_first_text_seconds_count") == 0


def test_an_error_of_the_model_is_raised_and_counted() -> None:
    async def scenario(queue: CountedQueue) -> None:
        with pytest.raises(ValueError, match="bad request"):
            await read(queue, "bad")

    registry = run(scenario)
    assert list_outcomes(registry) == {"failed": 1} and read_count(registry, "time_to_first_text_seconds_count") == 1


def test_a_client_that_leaves_is_counted_as_cancelled() -> None:
    async def scenario(queue: CountedQueue) -> None:
        async with aclosing(queue.generate("m", "endless", "client")) as steps:
            assert (await anext(steps)).piece == 0

    assert list_outcomes(run(scenario)) == {"cancelled": 1}


def test_a_missed_deadline_and_a_refusal_are_counted() -> None:
    async def scenario(queue: CountedQueue) -> None:
        with pytest.raises(DeadlineError):
            await read(queue, "endless")
        queue.refuse_new()
        assert queue.draining
        with pytest.raises(ServerClosedError):
            await read(queue, "three")

    assert list_outcomes(run(scenario, deadline_seconds=0.01)) == {"deadline": 1, "shutting_down": 1}
