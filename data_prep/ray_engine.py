"""Work on many items by the workers of a Ray cluster: what `pool` does with the processes of one machine.

Ray Data hands each item to an actor, which has opened what its work needs once, and starts actors that die again. An item that was in hand
then is tried anew; one that ends ATTEMPTS workers is given up. The count of its attempts lies in the folder that all machines share.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from data_prep.pool import Failure, Make, Result, Stop, told, twice
from finetune import cluster, files

T = TypeVar("T")
R = TypeVar("R")

ATTEMPTS = 3
"""One more than on one machine: here a machine that leaves takes its workers along, and that is not the item's fault."""
STOPPED = "stop"


@dataclass(frozen=True)
class Remote:
    """The workers of the cluster that this process is connected to."""

    workers: int
    gpus: float
    """Of each worker."""
    attempts: Path
    """A folder for this run alone, which all machines see."""


@contextlib.contextmanager
def opened(address: str | None, workers: int | None, gpus: float, shared: Path, needed: Sequence[Path]) -> Iterator[Remote]:
    """Connect, and see that the cluster can do it: `workers` (None: as many as it holds) of a CPU and `gpus` GPUs each, on machines that
    see what is written to `shared` and have the `needed` files. Raises `UserError`."""
    with cluster.connected(address):
        each = {"CPU": 1.0, **({"GPU": gpus} if gpus else {})}
        asked = cluster.room_for(each) if workers is None else workers
        cluster.require(max(1, asked), each, f"--workers {asked}")
        cluster.check_same_files(shared, needed)
        attempts = shared / ".attempts"
        files.discard(attempts)
        try:
            yield Remote(asked, gpus, files.make_folder(attempts))
        finally:
            files.discard(attempts)


def run(items: Sequence[T], make: Make[T, R], remote: Remote, stop: Stop) -> Iterator[tuple[int, R | Failure]]:
    """As `pool.run`: (index, result) of each item as it comes; fewer if `stop` was asked for. Raises `UserError` if a worker did."""
    if not items:
        return
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # the caller shows hours done and their speed
    workers = min(remote.workers, len(items))
    rows = ray.data.from_items([{"index": index} for index in range(len(items))], override_num_blocks=len(items))  # a task for each
    done = rows.map(
        Worker,
        fn_constructor_args=(make, list(items), remote.attempts, str(Path.cwd())),
        # Idle ones may go: a worker whose machine is lost needs the room of another to start again.
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers, initial_size=workers, max_tasks_in_flight_per_actor=1),
        num_cpus=1,
        num_gpus=remote.gpus,
    )
    for row in done.iter_rows():
        if stop.asked:
            files.write_text(remote.attempts / STOPPED, "")  # the items in hand are finished, the others not begun
        if row["result"] is not None:
            yield row["index"], told(row["result"])


class Worker:
    """One actor: opens what `make` gives, and does with it one item after the other."""

    def __init__(self, make: Make[Any, Any], items: list[Any], attempts: Path, folder: str) -> None:
        os.chdir(folder)  # what is relative on the command line means the same here
        self._items, self._attempts = items, attempts
        self._open = ExitStack()
        self._do = self._open.enter_context(make(0))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        index = row["index"]
        return {"index": index, "result": None if (self._attempts / STOPPED).exists() else self._result(index)}

    def _result(self, index: int) -> Result[Any]:
        mark = self._attempts / str(index)
        before = mark.read_text().split() if mark.exists() else []
        if len(before) >= ATTEMPTS:
            return Result(failure=f"its workers died, {len(before)} times, on {', '.join(dict.fromkeys(before))}")
        files.append_line(mark, platform.node())
        result = twice(self._do, self._items[index])
        files.discard(mark)
        return result
