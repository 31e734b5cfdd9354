"""Cost of finding a position in the data, from a thousand to a thousand million rows: time, and memory without the mapped file."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from overtone.finetune.data import batching, cached_samples, index_building
from overtone.finetune.data.batching import Order, Place
from overtone.finetune.data.cached_samples import Ids
from overtone.finetune.data.index_building import Measured
from overtone.finetune.storage import files
from workshop.benchmarks import _table

ORDER = Order(seed=1, window=1024, micro_tokens=4096, global_batch_tokens=16384)
ROUNDS = 15
COLUMNS = (
    "rows",
    "first step from the middle, ms",
    "opening the file, ms",
    "memory of its own, KiB",
    "mapped index, KiB",
    "counting an epoch's steps, ms",
)
NOTE = (
    "The first step's micro-batches from a place in the middle of the third epoch, medians of 15; then a file of that many rows opened "
    "through the index that an earlier start has left, for which both are digested, and that step's rows read: time, and growth of the "
    "process' anonymous memory. Only a run whose length is given in epochs counts their steps, once at its start. Lengths of the last line "
    "are made up in memory, as its file would fill 100 GB."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    sizes = [10**3, 10**4] if flags.quick else [10**3, 10**4, 10**5, 10**6]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = make(Path(folder) / f"{size}.jsonl", size)
            lines.append([f"{size:,}", *measure_opening(path)])
    lines.append([f"{10**9:,}", f"{step_from_the_middle(np.broadcast_to(np.int64(120), 10**9)):.1f}", *4 * ["–"]])
    _table.publish("order", flags, COLUMNS, lines, NOTE)


def make(path: Path, size: int) -> Path:
    """A file of short rows, and its index."""
    files.write_jsonl(path, ({"text": "x" * (20 + row * 37 % 200)} for row in range(size)))
    index_building.build_index(path, path.parent, "key", lambda row: Measured(len(row["text"]), sample=row["text"].encode()))
    return path


def measure_opening(path: Path) -> list[object]:
    """Return what stands in the table behind the number of rows."""
    gc.collect()
    before, began = anonymous_kib(), time.perf_counter()
    index_building.build_index(path, path.parent, "key", refuse_to_measure)
    found = cached_samples.open_rows(path, path.parent)
    seconds = time.perf_counter() - began
    step = next(batching.steps(ORDER, found.lengths, middle(len(found)), None))
    samples = [found.sample(row) for micro in step.micros for row in micro.ids]
    grown = anonymous_kib() - before
    assert len(samples) > 10
    took, index = step_from_the_middle(found.lengths), cached_samples.index_path(path, path.parent)
    began = time.perf_counter()
    batching.count_steps(ORDER, found.lengths, 1)
    counting = time.perf_counter() - began
    return [f"{took:.1f}", f"{1000 * seconds:.2f}", grown, index.stat().st_size // 1024, f"{1000 * counting:.0f}"]


def refuse_to_measure(_: dict[str, Any]) -> Measured:
    raise AssertionError("rows are measured once, not at every start")


def step_from_the_middle(lengths: Ids) -> float:
    """Median milliseconds."""
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        next(batching.steps(ORDER, lengths, middle(len(lengths)), None))
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds)


def middle(size: int) -> Place:
    return Place(epoch=2, window=size // ORDER.window // 2, micro=0)


def anonymous_kib() -> int:
    """Memory of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


if __name__ == "__main__":
    main()
