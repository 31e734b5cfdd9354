"""How long an asynchronous save holds the loop up, beside the time that copying the same state in memory takes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _ranks, _table

COLUMNS = ("state, MiB", "ranks", "copy, ms", "save holds the loop, ms", "save / copy")
NOTE = (
    "A save holds the loop while it agrees on a folder and copies the state; writing, hashing and syncing go on beside the training. "
    "Medians of 7 to 64 of each, in turns, of the slowest rank; a copy into fresh memory, as the save needs it. Agreeing takes about a "
    "millisecond of ranks that have a core each, however large the state is."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    sizes = [8] if flags.quick else [64, 256, 1024]
    with tempfile.TemporaryDirectory() as folder:
        found = [each for ranks in (1, 2) for each in _ranks.launch("_blocking_of_ranks.py", ranks, Path(folder), "blocking", *sizes)]
    _table.publish("save_blocking", flags, COLUMNS, [row(each) for each in found], NOTE)


def row(each: dict[str, Any]) -> list[object]:
    copy, save = 1000 * each["copy"], 1000 * each["save"]
    return [each["mebibytes"], each["ranks"], f"{copy:.1f}", f"{save:.1f}", f"{save / copy:.2f}"]


if __name__ == "__main__":
    main()
