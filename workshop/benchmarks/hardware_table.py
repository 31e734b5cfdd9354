"""Estimate: the smallest GPU, alone and as one of eight, on which each released model trains, as `overtone plan` says it.

Nothing here ran on a GPU. The models are built from their published shapes; all settings but those in the table are the recipe's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.hardware.gpu_specs import GPUS, make_cluster
from overtone.finetune.planning.meta_device_estimate import RunEstimate
from overtone.finetune.planning.run_plan import plan_run
from overtone.finetune.recipe import find_recipe, load_released_models
from workshop.benchmarks import _table
from workshop.benchmarks._released import LORA, QLORA, estimate_model

COLUMNS = ("model", "training", "added to the recipe's config", "one GPU", "memory, GiB", "eight GPUs", "memory of each, GiB")
NOTE = (
    "The smallest type of GPU that `overtone plan --recipe … --model.source … --gpus 1 --gpu TYPE` calls large enough, and the "
    "peak of its memory; with eight, the strategy that it recommends. `*`: with full activation checkpointing, which plan turns on where "
    "nothing fits without it; add `--train.activation_checkpointing full`. With `--parallel.offload true` and smaller micro-batches, less "
    "memory is enough."
)
WAYS = {"LoRA": LORA, "QLoRA": QLORA, "full": ()}


@dataclass(frozen=True)
class Training:
    """One row: a released model, and a way to train it."""

    name: str
    recipe: str
    way: str


TRAININGS = (
    *(Training(f"Qwen/Qwen3-TTS-12Hz-{size}-Base", "voice_clone", way) for size in ("0.6B", "1.7B") for way in ("LoRA", "full")),
    *(Training("Qwen/Qwen3-1.7B", "llm_sft", way) for way in ("LoRA", "full")),
    *(Training("Qwen/Qwen3-8B", "llm_sft", way) for way in ("QLoRA", "LoRA", "full")),
)


def estimate(training: Training) -> RunEstimate:
    (model,) = (model for model in load_released_models(find_recipe(training.recipe)) if model.name == training.name)
    return estimate_model(training.recipe, model, WAYS[training.way])


def smallest(foreseen: RunEstimate, count: int) -> tuple[str, str]:
    """(type of GPU, and with several the strategy; its memory) for so many GPUs in one machine; dashes if no type is large enough."""
    for name in sorted(GPUS, key=lambda each: GPUS[each].memory):
        best = plan_run(foreseen, make_cluster(name, count, 1)).best
        if best.fits:
            mark = "" if best.recomputing == foreseen.work.recomputing else " *"
            strategy = f", {best.arrangement.strategy}" if count > 1 else ""
            return f"{name} ({GPUS[name].memory:g} GiB){strategy}{mark}", f"{best.memory.total / 2**30:.1f}"
    return "–", "–"


def row(training: Training) -> list[str]:
    foreseen = estimate(training)
    added = " ".join(f"`--{key} '{value}'`" if " " in value else f"`--{key} {value}`" for key, value in WAYS[training.way])
    return [training.name.rpartition("/")[2], training.way, added or "–", *smallest(foreseen, 1), *smallest(foreseen, 8)]


def main() -> None:
    flags = _table.read_flags(__doc__)
    rows = [row(training) for training in (TRAININGS[:1] if flags.quick else TRAININGS)]
    _table.publish("hardware_table", flags, COLUMNS, rows, NOTE)


if __name__ == "__main__":
    main()
