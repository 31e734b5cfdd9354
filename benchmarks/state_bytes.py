"""Bytes of weights, gradients and AdamW's moments on each rank, against the formula: 16Ψ/N under fsdp, 16Ψ under ddp.

Ψ is the number of trained parameters; each has a master, a gradient and two moments of 4 bytes. Counted in real launches, on what is
allocated at the moment of the optimizer's update.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _table, _voice

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("strategy", "ranks N", "Ψ", "weights", "gradients", "moments", "together, fullest rank", "formula", "ratio")

NOTE = (
    "Bytes of the fullest rank; moments include AdamW's step count, 4 bytes a tensor. What is gathered for a block's forward and backward "
    "comes on top and goes again."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        _voice.make(Path(folder), "nano", clips=8, frames=10)
        measured = [found for ranks in ([2] if flags.quick else [1, 2, 4]) for found in launch(ranks, Path(folder))]
    ordered = sorted(measured, key=lambda found: (found["strategy"], found["ranks"]))
    _table.publish("state_bytes", flags, COLUMNS, [row(found) for found in ordered], NOTE)


def launch(ranks: int, folder: Path) -> list[dict[str, Any]]:
    """Both strategies on this many processes."""
    accelerate = Path(sys.executable).parent / "accelerate"
    config, script = ROOT / "configs" / "cpu.yaml", ROOT / "benchmarks" / "_state_of_ranks.py"
    command = [accelerate, "launch", "--config_file", config, "--num_processes", ranks, script, folder]
    subprocess.run([str(word) for word in command], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=sys.stderr)
    return json.loads((folder / f"state-{ranks}.json").read_text())


def row(found: dict[str, Any]) -> list[str]:
    fullest = max(found["each"], key=sum)
    formula = 16 * found["parameters"] / (found["ranks"] if found["strategy"] == "fsdp" else 1)
    numbers = [found["ranks"], found["parameters"], *fullest, sum(fullest), round(formula)]
    return [found["strategy"], *(f"{number:,}" for number in numbers), f"{sum(fullest) / formula:.4f}"]


if __name__ == "__main__":
    main()
