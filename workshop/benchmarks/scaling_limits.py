"""Estimate: the number of GPUs up to which each strategy pays off, where a GPU waits for others for at most a fifth of a step.

Of the cases of scaling.py, the largest power of two up to 512, by how much a step holds and what lies between machines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.planning.parallelism_planner import estimate_layout
from workshop.benchmarks import _table
from workshop.benchmarks.scaling import COUNTS, FABRICS, WAYS, Case, cases, cluster_of, waits, work_of

MOST = 0.2
"""Maximum share of a step spent waiting: positions cost at most a quarter more than without."""
HIDDEN_AT = 64
"""GPUs for which the micro-batch is given that hides what `fsdp` sends."""
COLUMNS = ("model", "a step's positions", "between machines, GB/s", *WAYS, f"micro-batch that hides fsdp on {HIDDEN_AT} GPUs")
NOTE = (
    f"“8 to 64”: fits from 8 GPUs on, and 64 is the largest number at which a GPU waits for at most {MOST:.0%} of a step; “never”: it "
    "fits, but a GPU always waits longer; “–”: it never fits, or is not possible. The last column: the fewest positions, a power of two, "
    f"with which a GPU of {HIDDEN_AT} waits so little under fsdp."
)


def reach(of: list[Case], way: str) -> str:
    """GPUs from which a way fits, and up to which it pays."""
    fits = {case.gpus: verdict for case in of if (verdict := case.of(way)) is not None}
    pays = [gpus for gpus, verdict in fits.items() if waits(verdict) <= MOST]
    if not fits:
        return "–"
    return f"{min(fits)} to {max(pays)}" if pays else "never"


def hiding(case: Case) -> int:
    """Positions of a GPU's micro-batch with which `fsdp` pays; memory is not considered."""
    cluster, work, micro = cluster_of(HIDDEN_AT, case.fabric), work_of(case.model), 64
    arrangement = next(each.arrangement for each in case.verdicts if each.arrangement.strategy == "fsdp" and each.arrangement.tensor == 1)
    while True:
        step = replace(work, micro_tokens=micro, global_batch_tokens=micro * HIDDEN_AT)
        if waits(estimate_layout(step, cluster, replace(arrangement, ranks=HIDDEN_AT), work.recomputing)) <= MOST:
            return micro
        micro *= 2


def rows(found: Iterable[Case]) -> list[list[str]]:
    table = []
    for (model, grows), of in groupby(found, lambda case: (case.model, case.grows)):
        every = list(of)
        inside = [case for case in every if case.gpus <= 8]
        for fabric in FABRICS:
            these = [*inside, *(case for case in every if case.gpus > 8 and case.fabric == fabric)]
            held = f"{model.micro:,} for each GPU" if grows else f"{model.batch:,} in all"
            table.append([model.name, held, f"{fabric:g}", *(reach(these, way) for way in WAYS), f"{hiding(these[-1]):,}"])
    return table


def main() -> None:
    flags = _table.read_flags(__doc__)
    _table.publish("scaling_limits", flags, COLUMNS, rows(cases((8, 16) if flags.quick else COUNTS)), NOTE)


if __name__ == "__main__":
    main()
