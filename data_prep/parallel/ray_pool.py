"""Process items on the workers of a Ray cluster: the counterpart of `data_prep/parallel/process_pool.py` for several machines.

Ray Data sends each item to an actor, which loads its models once, and restarts actors that die. The item of a dead actor is retried; an
item that kills ATTEMPTS workers is a failure. Attempts are counted in files in the shared folder.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NotRequired, TypedDict, TypeVar

from overtone.data_prep.parallel.process_pool import Failure, Make, Outcome, StopSignal, attempt_twice, open_worker, unwrap_result
from overtone.finetune.ray_cluster import cluster_checks, cluster_connection
from overtone.finetune.storage import files, folder_handles

T = TypeVar("T")
R = TypeVar("R")

ATTEMPTS = 3
"""Attempts per item, one more than on a single machine: a machine that leaves the cluster kills its workers, which is not the item's
fault."""
STOPPED = "stop"


@dataclass(frozen=True)
class RayWorkers:
    """The workers of the cluster that this process is connected to."""

    workers: int
    gpus: float
    """GPUs per worker."""
    attempts: Path
    """Folder of this run, visible to all machines."""


@contextlib.contextmanager
def connect_workers(address: str | None, workers: int | None, gpus: float, shared: Path, needed: Sequence[Path]) -> Iterator[RayWorkers]:
    """Connect to the cluster and check its resources: `workers` (None: as many as fit) with one CPU and `gpus` GPUs each, on machines that
    see files written to `shared` and have the `needed` files. Raises `UserError`."""
    with cluster_connection.connect(address), claim_workers(workers, gpus, shared, needed) as remote:
        yield remote


@contextlib.contextmanager
def claim_workers(workers: int | None, gpus: float, shared: Path, needed: Sequence[Path]) -> Iterator[RayWorkers]:
    """Like `connect_workers`, on the cluster that this process is connected to."""
    each = {"CPU": 1.0, **({"GPU": gpus} if gpus else {})}
    count = cluster_checks.count_room(each) if workers is None else workers
    cluster_checks.require_resources(max(1, count), each, f"--workers {count}")
    cluster_checks.check_same_files(shared, needed)
    attempts = shared / ".attempts"
    files.discard(attempts)
    try:
        yield RayWorkers(count, gpus, files.make_folder(attempts))
    finally:
        files.discard(attempts)


def run_items(items: Sequence[T], make: Make[T, R], remote: RayWorkers, stop: StopSignal) -> Iterator[tuple[int, R | Failure]]:
    """Like `process_pool.run_items`: yield (index, result) as items complete; fewer if a stop is requested. Raises `UserError` if a worker
    raised one. Items that the caller appends are processed after all others, by new actors."""
    begun = 0
    while begun < len(items) and not stop.requested:
        indices = range(begun, len(items))
        begun = len(items)
        yield from _run_indices(items, indices, make, remote, stop)


def _run_indices(
    items: Sequence[T], indices: range, make: Make[T, R], remote: RayWorkers, stop: StopSignal
) -> Iterator[tuple[int, R | Failure]]:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # the caller shows its own progress
    workers = min(remote.workers, len(indices))
    rows = ray.data.from_items([{"index": index} for index in indices], override_num_blocks=len(indices))  # one task per item
    done = rows.map(
        RayWorker,
        fn_constructor_args=(make, list(items), remote.attempts, str(Path.cwd()), folder_handles.list_named_paths()),
        # Idle workers may be removed: a worker whose machine is lost needs free resources to restart.
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers, initial_size=workers, max_tasks_in_flight_per_actor=1),
        num_cpus=1,
        num_gpus=remote.gpus,
    )
    for row in done.iter_rows():
        if stop.requested:
            files.write_text(remote.attempts / STOPPED, "")  # items in progress are finished, no others started
        if row["result"] is not None:
            yield row["index"], unwrap_result(row["result"])


class RayRow(TypedDict, Generic[R]):
    """A row of the tables that Ray processes: an item by its index, and its result."""

    index: int
    result: NotRequired[Outcome[R] | None]


class RayWorker(Generic[T, R]):
    """One Ray actor: enters the context of `make` once, then processes one item after the other."""

    def __init__(self, make: Make[T, R], items: list[T], attempts: Path, folder: str, named: list[str]) -> None:
        os.chdir(folder)  # relative paths of the command line then resolve as in the driver
        folder_handles.name_paths(named)  # Ray does not pass the driver's environment to workers
        self._items, self._attempts = items, attempts
        self._open = ExitStack()
        self._do = open_worker(make, 0, self._open)

    def __call__(self, row: RayRow[R]) -> RayRow[R]:
        index = row["index"]
        return {"index": index, "result": None if (self._attempts / STOPPED).exists() else self._process_item(index)}

    def _process_item(self, index: int) -> Outcome[R]:
        mark = self._attempts / str(index)
        before = mark.read_text().split() if mark.exists() else []
        if len(before) >= ATTEMPTS:
            files.discard(mark)  # the next items of this run may have the same index
            return Failure(f"its workers died, {len(before)} times, on {', '.join(dict.fromkeys(before))}")
        files.append_line(mark, platform.node())
        result = attempt_twice(self._do, self._items[index])
        files.discard(mark)
        return result
