"""Bytes that ranks send each other in a step, for every strategy: counted in real runs, compared with the planner's simulation.

Counted are the collectives that torch issues (`_collectives_of_ranks.py`), and what a ring has each rank send for them. The simulation is
`estimate_communication` in finetune/planning/parallelism_planner.py with `estimate_tensor_traffic`: over links of one byte a second its
seconds are bytes, over links that take no time they are hops, one for each other rank of each collective.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workshop.benchmarks import _ranks, _table
from workshop.benchmarks.strategy_bytes import VOCABULARIES, cases, make

COLUMNS = (
    "strategy", "compute", "ranks", "micro-batches", "all-gathers", "reduce-scatters", "all-reduces",
    "moved / Ψ", "bytes a rank sends", "simulated", "ratio", "hops", "simulated hops",
)  # fmt: skip
NOTE = (
    "One optimizer step on gloo; the model of strategy_bytes.py with 256 words. Single numbers (norms, counts) and the votes do not count. "
    "Moved / Ψ: elements in the literature's counting, all-reduced ones twice, over the model's parameters, for all micro-batches of the "
    "step: full sharding moves 3 Ψ for each, less the root, which stays gathered between forward and backward. Of that a rank sends "
    "(N-1)/N. Ranks that share matrices (tp) also sum their states: seven all-reduces for each block and micro-batch."
)


Case = tuple[str, int, str]
"""Strategy, words, precision."""
CASES: list[Case] = [case for case in cases() if case[1] == VOCABULARIES[0] and (case[2] == "bf16" or case[0] == "fsdp")]
QUICK = [case for case in CASES if case[0] in ("zero1", "fsdp × 2")] + [("fsdp", VOCABULARIES[0], "bf16")]


def main() -> None:
    flags = _table.read_flags(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        found = measure_ranks(Path(folder), [2] if flags.quick else [1, 2, 4], QUICK if flags.quick else CASES)
    _table.publish("communication", flags, COLUMNS, [row(each) for each in found], NOTE)


def measure_ranks(folder: Path, worlds: list[int], chosen: list[Case]) -> list[dict[str, Any]]:
    """Each case on each world."""
    make(folder)
    return [
        each for ranks in worlds for each in _ranks.launch("_collectives_of_ranks.py", ranks, folder, "collectives", json.dumps(chosen))
    ]


def row(found: dict[str, Any]) -> list[str]:
    counted, simulated = round(found["bytes"]), round(found["simulated"][0])
    ratio = f"{counted / simulated:.4f}" if simulated else "–"
    kinds = [str(found["kinds"][kind]) for kind in ("all-gather", "reduce-scatter", "all-reduce")]
    first = [found["strategy"], found["precision"], str(found["ranks"]), str(found["turns"]), *kinds]
    return [*first, f"{found['volume']:.2f}", f"{counted:,}", f"{simulated:,}", ratio, str(found["hops"]), f"{found['simulated'][1]:.0f}"]


if __name__ == "__main__":
    main()
