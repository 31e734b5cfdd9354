"""Worker options of both verbs that have them, and the distribution of items. test_ray_pool.py tests Ray."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from data_prep.cli import codes
from data_prep.parallel import devices, worker_options
from data_prep.parallel.process_pool import StopSignal
from data_prep.parallel.worker_options import WorkerOptions
from finetune.errors import UserError


@contextlib.contextmanager
def on(place: str) -> Iterator[Callable[[int], str]]:
    yield lambda item: f"{item} on {place}"


def test_without_workers_one_device_processes_all_items() -> None:
    with StopSignal() as stop:
        found = dict(worker_options.distribute_items([5, 6, 7], on, WorkerOptions(0, "cpu"), 1, stop))
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
    monkeypatch.setattr(worker_options.process_pool, "run_items", in_workers)
    with StopSignal() as stop:
        list(worker_options.distribute_items([5, 6, 7], loading, WorkerOptions(3), 1, stop))
    assert seen == [("cuda:0", 0), ("cuda:1", 1), ("cuda:0", 0)]


@pytest.mark.parametrize(
    ("asked", "items", "processes"),
    [(WorkerOptions(0, "cpu"), 3, 0), (WorkerOptions(5, "cpu"), 3, 5), (WorkerOptions(2, "cpu"), 3, 2), (WorkerOptions(), 9, 4)],
)
def test_the_number_of_worker_processes(asked: WorkerOptions, items: int, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(worker_options.process_pool, "run_items", lambda _, __, count, *___: started.append(count) or iter(()))
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(devices, "free_host_memory", lambda: 4 * 2**30)
    monkeypatch.setattr(worker_options, "choose_device", lambda asked: asked or "cpu")
    with StopSignal() as stop:
        assert dict(worker_options.distribute_items(range(items), on, asked, 2**30, stop)) == {}
    assert started == [processes]


def test_worker_options_are_parsed_and_checked() -> None:
    options = argparse.ArgumentParser()
    worker_options.add_options(options, "the model")
    with worker_options.open_workers(options.parse_args([]), Path(), []) as nothing_asked:
        assert nothing_asked == WorkerOptions(None, None, None)
    with worker_options.open_workers(options.parse_args(["--workers", "3", "--device", "cpu"]), Path(), []) as asked:
        assert asked == WorkerOptions(3, "cpu", None)
    with pytest.raises(UserError, match="--workers -1: expected a number of processes"):
        worker_options.check_options(options.parse_args(["--workers", "-1"]))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gpus-per-worker", "0.5"], "--ray-address and --gpus-per-worker need --engine ray"),
        (["--engine", "ray", "--device", "cuda"], "--engine ray: use --gpus-per-worker (0 or more) instead of --device"),
        (["--engine", "ray", "--workers", "0"], "and at least 1 for --workers"),
    ],
)
def test_codes_refuses_contradicting_worker_options_before_it_reads_clips(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert codes.main([str(tmp_path / "none"), "--model", "none", *argv]) == 2
    assert message in capsys.readouterr().err
