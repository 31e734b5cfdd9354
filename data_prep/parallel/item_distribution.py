"""Distribution of items to worker processes of this machine or of a Ray cluster, each on its own device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from overtone.data_prep.parallel import process_pool, ray_pool
from overtone.data_prep.parallel.devices import assign_devices, choose_device, set_current_device
from overtone.data_prep.parallel.process_pool import Failure, OnProgress, StopSignal, ignore_progress
from overtone.data_prep.parallel.worker_options import WorkerOptions

T = TypeVar("T")
R = TypeVar("R")


def distribute_items(
    items: Sequence[T],
    make: Callable[[str], AbstractContextManager[Callable[[T], R]]],
    workers: WorkerOptions,
    memory_each: int,
    stop: StopSignal,
    on_progress: OnProgress = ignore_progress,
) -> Iterator[tuple[int, R | Failure]]:
    """Yield (index, result) of each item as it completes; fewer if a stop is requested. `make` gets the device of its worker and must be
    picklable. `memory_each`: bytes per worker, which limit the default number of CPU workers. The caller may append to `items`
    (`process_pool.run_items`). `on_progress`: see `process_pool.send_progress`; Ray workers send none."""
    if workers.remote is not None:
        return ray_pool.run_items(
            items, functools.partial(_open_on_device, make, ["cuda" if workers.remote.gpus else "cpu"]), workers.remote, stop
        )
    devices = assign_devices(choose_device(workers.device), workers.count if workers.count != 0 else 1, memory_each)
    count = len(devices) if workers.count != 0 else 0
    return process_pool.run_items(items, functools.partial(_open_on_device, make, devices), count, stop, on_progress)


def _open_on_device(
    make: Callable[[str], AbstractContextManager[Callable[[T], R]]], devices: list[str], number: int
) -> AbstractContextManager[Callable[[T], R]]:
    """Call `make` with the device of worker `number`, inside that worker."""
    set_current_device(devices[number])
    return make(devices[number])
