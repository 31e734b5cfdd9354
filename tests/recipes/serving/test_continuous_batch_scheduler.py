"""Tests of `overtone.recipes.serving.continuous_batch_scheduler`. The batch counts, one number for each step that the test permits."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from overtone.recipes.serving.continuous_batch_scheduler import BatchScheduler, DeadlineError, QueueFullError, ServerClosedError
from overtone.recipes.serving.prometheus_metrics import ServerMetrics
from overtone.recipes.serving.running_batch_interface import STOP, StepProgress

Request = tuple[str, int]
"""Name and number of pieces."""


class CountingBatch:
    """Each request gets its name with 0, 1, …; `refused` cannot join, a step with `broken` or `stuck` in the batch fails, and `stuck`
    cannot leave."""

    def __init__(self, slots: int, held: bool) -> None:
        self.slots, self.joined, self.left = slots, list[str](), list[str]()
        self.permits = threading.Semaphore(0) if held else None
        self._running: dict[int, tuple[str, int, int]] = {}
        self.most = 0

    def join(self, request: Request) -> int:
        name, count = request
        if name == "refused":
            raise ValueError("cannot be spoken")
        slot = min(set(range(self.slots)) - self._running.keys())
        self._running[slot] = (name, count, 0)
        self.joined.append(name)
        self.most = max(self.most, len(self._running))
        return slot

    def step(self) -> dict[int, StepProgress[str]]:
        if self.permits is not None:
            self.permits.acquire()
        if any(name in ("broken", "stuck") for name, _, _ in self._running.values()):
            raise RuntimeError("the model failed")
        found = {}
        for slot, (name, count, done) in [*self._running.items()]:
            over = done + 1 == count
            found[slot] = StepProgress(f"{name}{done}", STOP if over else None)
            self._running[slot] = (name, count, done + 1)
            if over:
                del self._running[slot]
        return found

    def leave(self, slot: int) -> None:
        self.left.append(self._running.pop(slot)[0])
        if self.left[-1] == "stuck":
            raise RuntimeError("the device is lost")


Scenario = Callable[[BatchScheduler[Request, str], CountingBatch], Awaitable[None]]


def run(scenario: Scenario, slots: int = 2, room: int = 2, held: bool = False) -> CountingBatch:
    batch = CountingBatch(slots, held)

    async def run_scenario() -> None:
        scheduler = BatchScheduler[Request, str](
            {"m": batch}, ServerMetrics("chat", "text", frozenset({"/v1/chat/completions"}), ("m",), {}), room
        )
        try:
            await asyncio.wait_for(scenario(scheduler, batch), 60)
            assert scheduler.pending == 0
        finally:
            if batch.permits is not None:
                batch.permits.release(10_000)
            await asyncio.to_thread(scheduler.close)

    asyncio.run(run_scenario())
    return batch


async def all_of(scheduler: BatchScheduler[Request, str], name: str, count: int, client: str = "", seconds: float = 60.0) -> list[str]:
    return [one.piece or "" async for one in scheduler.generate("m", (name, count), client, seconds)]


async def until(condition: Callable[[], bool]) -> None:
    """Poll, for at most as long as the scenario may take."""
    while not condition():
        await asyncio.sleep(0.001)


def test_requests_are_generated_together_and_each_gets_its_own_pieces() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        found = await asyncio.gather(*(all_of(scheduler, name, count) for name, count in [("a", 4), ("b", 3), ("c", 2), ("d", 1)]))
        assert found == [["a0", "a1", "a2", "a3"], ["b0", "b1", "b2"], ["c0", "c1"], ["d0"]]
        read, of_model = scheduler.metrics.registry.get_sample_value, {"model": "m"}
        assert read("overtone_chat_batch_requests_total", of_model) == 10
        assert 1 <= read("overtone_chat_batch_steps_total", of_model) < 10
        assert read("overtone_chat_generation_seconds_total", of_model) > 0

    batch = run(scenario)
    assert batch.most == 2 and batch.left == []


def test_a_client_with_many_requests_delays_another_by_one() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        waiting = [asyncio.create_task(all_of(scheduler, f"greedy{number}", 2, "greedy")) for number in range(6)]
        await asyncio.sleep(0)  # each task runs to its first wait
        waiting.append(asyncio.create_task(all_of(scheduler, "modest", 2, "modest")))
        await asyncio.sleep(0)
        assert batch.permits is not None
        batch.permits.release(100)
        await asyncio.gather(*waiting)

    joined = run(scenario, slots=1, room=10, held=True).joined
    assert joined.index("modest") <= 2 and joined[0] == "greedy0"


def test_a_disconnected_client_frees_its_slot_and_leaves_the_queue() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        assert batch.permits is not None
        async with aclosing(scheduler.generate("m", ("a", 100), "", 60)) as steps:
            batch.permits.release()
            assert (await anext(steps)).piece == "a0"
            waiting = [asyncio.create_task(all_of(scheduler, name, 1)) for name in "bc"]
            await asyncio.sleep(0)
            waiting[0].cancel()  # while it waits
            await asyncio.wait(waiting[:1])
        batch.permits.release(3)
        assert await waiting[1] == ["c0"]
        assert batch.left == ["a"]

    assert run(scenario, slots=1, held=True).joined == ["a", "c"]


def test_a_full_queue_refuses_the_next_request() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        waiting = [asyncio.create_task(all_of(scheduler, name, 1)) for name in "abcd"]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match=r"Queue full \(4 pending\)"):
            await all_of(scheduler, "e", 1)
        assert batch.permits is not None
        batch.permits.release(10)
        await asyncio.gather(*waiting)
        assert await all_of(scheduler, "f", 1) == ["f0"]

    assert "e" not in run(scenario, held=True).joined


def test_a_request_is_stopped_at_its_deadline_in_the_batch_and_in_the_queue() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        for name in ("running", "waiting"):
            with pytest.raises(DeadlineError, match=r"not complete after 0.05 s"):
                await all_of(scheduler, name, 3, seconds=0.05)
        assert batch.permits is not None and scheduler.pending == 0
        batch.permits.release()
        await until(lambda: batch.left == ["running"])

    assert run(scenario, slots=1, held=True).joined == ["running"]


def test_an_error_fails_only_the_requests_that_it_concerns() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        with pytest.raises(ValueError, match="cannot be spoken"):
            await all_of(scheduler, "refused", 1)
        with pytest.raises(RuntimeError, match="the model failed"):
            await all_of(scheduler, "broken", 1)
        assert await all_of(scheduler, "good", 2) == ["good0", "good1"]

    assert run(scenario).left == ["broken"]


def test_a_slow_reader_does_not_hold_a_slot() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        slow = scheduler.generate("m", ("slow", 5), "", 60)
        assert (await anext(slow)).piece == "slow0"
        assert [await all_of(scheduler, name, 2) for name in "abc"] == [["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]
        assert [one.piece async for one in slow] == ["slow1", "slow2", "slow3", "slow4"]

    assert run(scenario, slots=1, room=1).left == []


def test_a_request_leaves_the_queue_when_it_is_generated_not_when_it_is_read() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        slow = [scheduler.generate("m", (name, 3), "", 60) for name in "ab"]
        assert [(await anext(one)).piece for one in slow] == ["a0", "b0"]
        await until(lambda: scheduler.pending == 0)
        assert await all_of(scheduler, "c", 1) == ["c0"]
        assert [[one.piece async for one in rest] for rest in slow] == [["a1", "a2"], ["b1", "b2"]]

    assert run(scenario, slots=1, room=1).left == []


def test_a_full_queue_gives_a_place_of_the_client_with_most_requests_to_another() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        greedy = [asyncio.create_task(all_of(scheduler, f"greedy{number}", 1, "greedy")) for number in range(4)]
        await until(lambda: batch.joined == ["greedy0"])
        assert scheduler.pending == 4
        modest = [asyncio.create_task(all_of(scheduler, f"modest{number}", 1, "modest")) for number in range(2)]
        with pytest.raises(QueueFullError, match=r"Queue full \(4 pending\)"):
            await greedy[3]
        with pytest.raises(QueueFullError):
            await modest[1]
        assert batch.permits is not None
        batch.permits.release(10)
        assert await asyncio.gather(*greedy[:3], modest[0]) == [["greedy00"], ["greedy10"], ["greedy20"], ["modest00"]]

    assert run(scenario, slots=1, room=3, held=True).joined[:3] != ["greedy0", "greedy1", "greedy2"]


def test_a_request_that_cannot_leave_gets_its_error_and_the_next_one_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], _batch: CountingBatch) -> None:
        with pytest.raises(RuntimeError, match="the model failed"):
            await all_of(scheduler, "stuck", 3)
        assert await all_of(scheduler, "next", 1) == ["next0"]

    assert run(scenario).left == ["stuck"]
    assert "slot 0 could not be freed: RuntimeError: the device is lost" in capsys.readouterr().err


def test_draining_completes_accepted_requests_and_closing_fails_them() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        assert batch.permits is not None
        accepted = asyncio.create_task(all_of(scheduler, "a", 1))
        await asyncio.sleep(0)
        scheduler.refuse_new()
        with pytest.raises(ServerClosedError):
            await all_of(scheduler, "b", 1)
        batch.permits.release()
        assert await accepted == ["a0"]

    run(scenario, held=True)

    async def closing(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        assert batch.permits is not None
        open_ones = [asyncio.create_task(all_of(scheduler, name, 5)) for name in "abc"]
        await until(lambda: bool(batch.joined))
        closed = asyncio.create_task(asyncio.to_thread(scheduler.close))
        await until(lambda: scheduler._closing)
        batch.permits.release()
        for one in open_ones:
            with pytest.raises(ServerClosedError):
                await one
        await closed

    run(closing, slots=1, held=True)


@pytest.mark.slow
def test_memory_stays_bounded_over_2000_requests_of_which_many_are_abandoned() -> None:
    async def scenario(scheduler: BatchScheduler[Request, str], batch: CountingBatch) -> None:
        async def abandon(number: int) -> None:
            async with aclosing(scheduler.generate("m", (f"x{number}-", 50), str(number % 7), 60)) as steps:
                await anext(steps)

        async def run_many(first: int) -> None:
            for start in range(first, first + 1000, 10):
                await asyncio.gather(
                    *(abandon(n) if n % 3 else all_of(scheduler, f"x{n}-", 5, str(n % 7)) for n in range(start, start + 10))
                )
            await until(lambda: not scheduler._lanes["m"].running)
            batch.joined.clear(), batch.left.clear()
            gc.collect()

        tracemalloc.start()
        await run_many(0)
        before = tracemalloc.get_traced_memory()[0]
        await run_many(1000)
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
        tracemalloc.stop()
        assert not scheduler._left and not len(scheduler._lanes["m"].waiting)

    run(scenario, slots=4, room=10)
