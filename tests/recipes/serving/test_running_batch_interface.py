"""Tests of `overtone.recipes.serving.running_batch_interface`."""

from __future__ import annotations

from collections.abc import Iterator

from overtone.recipes.serving.running_batch_interface import STOP, OneAtATime, StepProgress


def test_a_model_without_a_batch_generates_one_request_at_a_time() -> None:
    closed = []

    def count(request: int) -> Iterator[int]:
        try:
            yield from range(request)
        finally:
            closed.append(request)

    batch = OneAtATime(count)
    assert batch.step() == {} and batch.slots == 1
    assert batch.join(2) == 0
    assert [batch.step() for _ in range(4)] == [{0: StepProgress(0)}, {0: StepProgress(1)}, {0: StepProgress(None, STOP)}, {}]
    batch.join(9)
    assert batch.step() == {0: StepProgress(0)}
    batch.leave(0)
    assert closed == [2, 9] and batch.step() == {}
