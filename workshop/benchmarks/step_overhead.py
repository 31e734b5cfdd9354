"""Overhead of our training step over a bare loop: same model, weights, batch and AdamW, without sharding, votes and checks.

Beside it, what the loop of accelerate's documentation costs. Of what is beyond the arithmetic, hooks and votes are the same for any batch
and width, so the ratio is largest on a tiny model; copies of weights and gradients grow with the model, but not with the batch.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.recipes.qwen3_tts.model.config_factory import SMALL, ModelSize
from workshop.benchmarks import _ranks, _table, _voice

SMALL_ENOUGH = ModelSize("small", 2048, 256, 384, 1024, 6, 384, 1024, 2, 6, 2, 64, 16, 8, 2048)
"""39 million parameters: as wide as lets matrix products, and not calls, take the time, and small enough for a processor."""
MODELS = {
    "nano": (SMALL["nano"], 4, 50, 40),
    "mini": (SMALL["mini"], 4, 50, 24),
    "mini, more": (SMALL["mini"], 16, 100, 12),
    "small": (SMALL_ENOUGH, 4, 50, 8),
    "small, more": (SMALL_ENOUGH, 8, 100, 6),
}
"""Name: the voice model, clips of a step, frames of each, rounds."""
QUICK = {"nano": (SMALL["nano"], 2, 10, 3)}
COLUMNS = ("model", "clips × frames", "positions a step", "ranks", "bare loop, ms", "our step / bare loop", "accelerate / bare loop")
NOTE = (
    "fp32, one thread a rank, `parallel.strategy: ddp` beside torch's DistributedDataParallel; on two ranks, both train on the same clips. "
    "Processor time of a rank, 6 to 40 steps of each, in turns; medians. small has 39 million parameters."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    models = QUICK if flags.quick else MODELS
    with tempfile.TemporaryDirectory() as folder:
        for name, (width, clips, frames, _) in models.items():
            _voice.make(Path(folder) / name, width, clips, frames)
        rounds = [f"{name}={each[-1]}" for name, each in models.items()]
        found = [each for ranks in (1, 2) for each in _ranks.launch("_overhead_of_ranks.py", ranks, Path(folder), "overhead", *rounds)]
    _table.publish("step_overhead", flags, COLUMNS, [row(each, models[each["model"]]) for each in found], NOTE)


def row(each: dict[str, Any], setting: tuple[ModelSize, int, int, int]) -> list[object]:
    ours, bare, accelerates = (median(each[name]) for name in ("ours", "bare", "accelerate"))
    _, clips, frames, _ = setting
    shape = [each["model"].partition(",")[0], f"{clips} × {frames}", f"{each['positions']:,}", each["ranks"]]
    return [*shape, f"{1000 * bare:.1f}", f"{ours / bare:.2f}", f"{accelerates / bare:.2f}"]


if __name__ == "__main__":
    main()
