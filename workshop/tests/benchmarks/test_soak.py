"""The soak's CPU seconds per event, and its count of files that vanish meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from workshop.benchmarks import soak
from workshop.benchmarks.soak import Observation


def observe(seconds: float, processes: int, cpu_seconds: float) -> Observation:
    return Observation(seconds, processes, 0.0, 0, 0, cpu_seconds)


def test_cpu_seconds_are_divided_by_the_events_of_their_window() -> None:
    seen = [observe(2.0 * number, 3, 10.0 + number) for number in range(5)]
    found = soak.cpu_seconds_per_event(seen, [0.5, 7.5, 3.0, 4.0, 5.0])  # in windows of four seconds: three, and two
    assert found == [(2.0, pytest.approx(2 / 3)), (6.0, pytest.approx(2 / 2))]


def test_a_window_without_events_or_with_other_processes_has_no_figure() -> None:
    seen = [observe(0.0, 1, 1.0), observe(2.0, 1, 2.0), observe(4.0, 3, 9.0), observe(6.0, 3, 10.0), observe(8.0, 3, 11.0)]
    assert soak.cpu_seconds_per_event(seen, [1.0, 5.0]) == [(6.0, pytest.approx(2.0))]
    assert soak.cpu_seconds_per_event(seen, [1.0]) == []


def test_files_that_vanish_count_as_empty(tmp_path: Path) -> None:
    assert list(soak.iterate_files(tmp_path)) == [], "before the first checkpoint"
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-1" / "a").write_bytes(b"1234")
    (tmp_path / "log.jsonl").write_bytes(b"12")
    (found,) = soak.iterate_files(tmp_path)
    assert soak.size_of(found) == 4
    found.unlink()
    assert soak.size_of(found) == 0
