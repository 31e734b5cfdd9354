"""Devices and number of the workers that process items. test_ray_pool.py tests Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from overtone.data_prep.parallel import devices, item_distribution
from overtone.data_prep.parallel.process_pool import StopSignal
from overtone.data_prep.parallel.worker_options import WorkerOptions


@contextlib.contextmanager
def on(place: str) -> Iterator[Callable[[int], str]]:
    yield lambda item: f"{item} on {place}"


def test_without_workers_one_device_processes_all_items() -> None:
    with StopSignal() as stop:
        found = dict(item_distribution.distribute_items([5, 6, 7], on, WorkerOptions(0, "cpu"), 1, stop))
    assert found == {0: "5 on cpu", 1: "6 on cpu", 2: "7 on cpu"}


def test_each_worker_makes_its_gpu_current_before_it_loads_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise Whisper's kernels of worker 1 are launched on GPU 0, where its tensors are not."""
    current = ["cuda:0"]
    seen: list[tuple[str, str]] = []

    @contextlib.contextmanager
    def loading(place: str) -> Iterator[Callable[[int], int]]:
        seen.append((place, current[-1]))
        yield lambda item: item

    def in_workers(_items: object, make: Callable[[int], Any], count: int, *_: object) -> Iterator[Any]:
        for number in range(count):
            with make(number):
                pass
        return iter(())

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(item_distribution.process_pool, "run_items", in_workers)
    with StopSignal() as stop:
        list(item_distribution.distribute_items([5, 6, 7], loading, WorkerOptions(3), 1, stop))
    assert seen == [("cuda:0", 0), ("cuda:1", 1), ("cuda:0", 0)]


@pytest.mark.parametrize(
    ("asked", "items", "processes"),
    [(WorkerOptions(0, "cpu"), 3, 0), (WorkerOptions(5, "cpu"), 3, 5), (WorkerOptions(2, "cpu"), 3, 2), (WorkerOptions(), 9, 4)],
)
def test_the_number_of_worker_processes(asked: WorkerOptions, items: int, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(item_distribution.process_pool, "run_items", lambda _, __, count, *___: started.append(count) or iter(()))
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(devices, "free_host_memory", lambda: 4 * 2**30)
    monkeypatch.setattr(item_distribution, "choose_device", lambda asked: asked or "cpu")
    with StopSignal() as stop:
        assert dict(item_distribution.distribute_items(range(items), on, asked, 2**30, stop)) == {}
    assert started == [processes]
