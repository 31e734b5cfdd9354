"""Measures how long an asynchronous save blocks training, compared with a copy of the same state in memory and with torch.save of all of
it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workshop.benchmarks import _ranks, _table, _timing

COLUMNS = (
    *("state, MiB", "ranks", "copy, ms", "save holds the loop, ms", "save / copy", "on the wall"),
    *("first copy, ms", "first save, ms", "first save / first copy", "torch.save, ms", "torch.save / save"),
)
NOTE = (
    "A save holds the loop while it agrees on a folder and copies the state; it is written, hashed and synced beside the training. The "
    "first save of a run allocates the memory that it and all later ones are copied into, which is beside a copy into fresh memory here, "
    "and a later one beside a copy into memory that was used before. Processor time of the thread that trains, the slowest rank's, median; "
    "ratios: median (smallest–largest) of the rounds, 7 to 16, 5 of first saves, in turns. On the wall: the ratio of the medians of "
    "elapsed time, in which whoever else uses the machine has a part, and ranks wait for each other: about a millisecond if each has a "
    "core of its own, however large the state is. torch.save: rank 0 writes the whole state while the loop waits, and nothing is synced; "
    "gathering it from the ranks, which takes longer still, is not counted."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    sizes = [8] if flags.quick else [64, 256, 1024]
    with tempfile.TemporaryDirectory() as folder:
        found = [each for ranks in (1, 2) for each in _ranks.launch("_blocking_of_ranks.py", ranks, Path(folder), "blocking", *sizes)]
    _table.publish("save_blocking", flags, COLUMNS, [row(each) for each in found], NOTE)


def row(each: dict[str, Any]) -> list[object]:
    own, wall = ({name: [one[clock] for one in rounds] for name, rounds in each["rounds"].items()} for clock in ("processor", "wall"))
    shown = {name: f"{1000 * median(seconds):.1f}" for name, seconds in own.items()}
    return [
        *(each["mebibytes"], each["ranks"], shown["copy"], shown["save"], _timing.ratio(own["save"], own["copy"])),
        *(f"{median(wall['save']) / median(wall['copy']):.2f}", shown["first copy"], shown["first save"]),
        *(_timing.ratio(own["first save"], own["first copy"]), shown["torch.save"]),
        f"{median(own['torch.save']) / median(own['save']):.1f}",
    ]


if __name__ == "__main__":
    main()
