"""The parent gets the activity of a worker. test_progress.py tests how it is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from overtone.data_prep.parallel import process_pool
from overtone.data_prep.parallel.process_pool import StopSignal
from overtone.data_prep.pipeline.worker_activity import Activity, format_time, report_activity


@contextlib.contextmanager
def decoding(_number: int) -> Iterator[Callable[[float], None]]:
    yield lambda seconds: report_activity("decoding", seconds)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_parent_gets_the_activity_with_the_index_of_the_item(workers: int) -> None:
    received: list[tuple[int, Any]] = []
    with StopSignal() as stop:
        list(process_pool.run_items([1.5, 90.0], decoding, workers, stop, lambda *given: received.append(given)))
    assert received == [(0, Activity("decoding", 1.5)), (1, Activity("decoding", 90.0))]


def test_a_time_has_hours_and_rounded_seconds() -> None:
    assert [format_time(seconds) for seconds in (0.0, 59.6, 3723.2)] == ["0:00:00", "0:01:00", "1:02:03"]
