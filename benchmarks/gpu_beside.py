"""On a GPU, with models of the same shapes: our step beside a bare loop, other ways of training a voice, saving, resuming, and speech.

Without a CUDA GPU it says so and leaves the table as it is; with --quick it runs through all of it at the smallest sizes, on a CPU too.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._gpu import Part, Report, measure

REPORT = Report(
    name="gpu_beside",
    parts=(
        Part("_gpu_beside.py", "bases", 3, needed=True),
        Part("_gpu_beside.py", "overhead", 2),
        Part("_gpu_beside.py", "ways", 3),
        Part("_gpu_beside.py", "speech", 2),
        Part("_gpu_beside.py", "saving", 4),
    ),
    minutes=11,
    columns=("model", "measured", "here", "beside it", "that", "ratio"),
    note=(
        "The same models as in `gpu`. Seconds by a clock, with the device idle before and after; ratios are what stands beside it over "
        "what is here, of the same round, median (smallest–largest), so more is better. Saving holds the loop for a copy to host memory; "
        "beside it, torch.save of the whole state."
    ),
)

if __name__ == "__main__":
    measure(REPORT, __doc__)
