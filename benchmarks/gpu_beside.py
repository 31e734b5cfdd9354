"""On a GPU, with 1.7B-shaped random weights: our step beside a bare loop, other ways of training a voice, saving, resuming, and speech.

Without a CUDA GPU it says so and leaves the table as it is; with --quick it runs through all of it at the smallest sizes, on a CPU too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _gpu, _table
from benchmarks._gpu import Part
from benchmarks.gpu import about_machine

PARTS = (
    Part("_gpu_beside.py", "bases", 3),
    Part("_gpu_beside.py", "overhead", 2),
    Part("_gpu_beside.py", "ways", 3),
    Part("_gpu_beside.py", "speech", 2),
    Part("_gpu_beside.py", "saving", 4),
)
MINUTES = 11
COLUMNS = ("model", "measured", "here", "beside it", "that", "ratio")
NOTE = (
    "The same models as in `gpu`. Seconds by a clock, with the device idle before and after; ratios are what stands beside it over what is "
    "here, of the same round, median (smallest–largest), so more is better. Saving holds the loop for a copy to host memory; beside it, "
    "torch.save of the whole state."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    if not flags.quick and not _gpu.has_gpu():
        print(f"no CUDA GPU here: {flags.to / 'gpu_beside.md'} stays as it is (--quick runs through the benchmark on a CPU)")
        return
    with tempfile.TemporaryDirectory() as folder:
        rows, remarks = _gpu.run_parts(PARTS, Path(folder), flags.quick, MINUTES)
    _table.publish("gpu_beside", flags, COLUMNS, rows, " ".join([NOTE, about_machine(), *(f"Not measured: {each}." for each in remarks)]))


if __name__ == "__main__":
    main()
