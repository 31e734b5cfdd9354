"""How long an asynchronous save holds the loop up, beside a copy of the same state in memory, and beside torch.save of all of it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _ranks, _table

COLUMNS = ("state, MiB", "ranks", "copy, ms", "save holds the loop, ms", "torch.save, ms", "save / copy", "torch.save / save")
NOTE = (
    "A save holds the loop while it agrees on a folder and copies the state; writing, hashing and syncing go on beside the training. "
    "Medians of 7 to 64 of each, in turns, of the slowest rank; a copy into fresh memory, as the save needs it. Agreeing takes about a "
    "millisecond of ranks that have a core each, however large the state is. torch.save: rank 0 writes the whole state while the loop "
    "waits, and nothing is synced; gathering it from the ranks, which takes longer still, is not counted."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    sizes = [8] if flags.quick else [64, 256, 1024]
    with tempfile.TemporaryDirectory() as folder:
        found = [each for ranks in (1, 2) for each in _ranks.launch("_blocking_of_ranks.py", ranks, Path(folder), "blocking", *sizes)]
    _table.publish("save_blocking", flags, COLUMNS, [row(each) for each in found], NOTE)


def row(each: dict[str, Any]) -> list[object]:
    copy, save, whole = (1000 * each[name] for name in ("copy", "save", "torch.save"))
    return [each["mebibytes"], each["ranks"], f"{copy:.1f}", f"{save:.1f}", f"{whole:.0f}", f"{save / copy:.2f}", f"{whole / save:.1f}"]


if __name__ == "__main__":
    main()
