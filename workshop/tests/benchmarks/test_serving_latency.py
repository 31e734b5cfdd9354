"""The closed loop of `serving_latency`, with a server that answers at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from workshop.benchmarks.serving_latency import Pattern, run_clients


def test_each_client_waits_for_its_answer_before_it_sends_the_next_request() -> None:
    running, most, seeds = list[int](), list[int](), list[int]()

    async def speak(_: str, seed: int, frames: int) -> AsyncIterator[float]:
        running.append(seed)
        seeds.append(seed)
        for _number in range(frames):
            await asyncio.sleep(0)
            most.append(len(running))
            yield 0.5
        running.remove(seed)

    waits = run_clients(speak, 3, Pattern(2, (4,), 0.0))
    assert sorted(seeds) == [0, 0, 1, 2, 3, 4, 5], "the first one warms up"
    assert (len(waits.first), len(waits.gaps), waits.sound) == (6, 6 * 3, 6 * 4 * 0.5) and max(most) == 3
    first_p50, first_p95, gap_p50, gap_p95, speed = map(float, waits.cells())
    assert first_p50 <= first_p95 and gap_p50 <= gap_p95 and speed > 0
