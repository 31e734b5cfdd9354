"""Estimate: the smallest GPU, alone and as one of eight, on which each released model trains, as `finetune plan` says it.

Nothing here ran on a GPU. The models are built from their published shapes; all settings but those in the table are the recipe's.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _table
from finetune.config import resolve
from finetune.hardware.gpu_specs import GPUS, make_cluster
from finetune.planning.estimate import RunEstimate, estimate_run
from finetune.planning.report import plan_run
from finetune.recipe import find_recipe, load_recipe
from finetune.storage import files
from recipes.voice_clone.model.model_configs import make_released_config

COLUMNS = ("model", "training", "added to the recipe's config", "one GPU", "memory, GiB", "eight GPUs", "memory of each, GiB")
NOTE = (
    "The smallest type of GPU that `python -m finetune plan --recipe … --model.source … --gpus 1 --gpu TYPE` calls large enough, and the "
    "peak of its memory; with eight, the strategy that it recommends. `*`: with full activation checkpointing, which plan turns on where "
    "nothing fits without it; add `--train.activation_checkpointing full`. With `--parallel.offload true` and smaller micro-batches, less "
    "memory is enough."
)
QWEN3 = {"model_type": "qwen3", "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 40960}
SMALL_CHAT = QWEN3 | {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16, "tie_word_embeddings": True,
}  # fmt: skip
LARGE_CHAT = QWEN3 | {
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32, "tie_word_embeddings": False,
}  # fmt: skip
LORA = (("model.lora", "{rank: 16, alpha: 32}"),)
QLORA = (*LORA, ("model.quantization", "nf4"))


@dataclass(frozen=True)
class Training:
    """One row: a model by its shape, and a way to train it."""

    name: str
    recipe: str
    shape: dict[str, Any]
    way: str
    overrides: tuple[tuple[str, str], ...] = ()


TRAININGS = (
    *(
        Training(f"Qwen3-TTS-12Hz-{size}-Base", "voice_clone", make_released_config(size), way, overrides)
        for size in ("0.6B", "1.7B")
        for way, overrides in (("LoRA", LORA), ("full", ()))
    ),
    Training("Qwen3-1.7B", "llm_sft", SMALL_CHAT, "LoRA", LORA),
    Training("Qwen3-1.7B", "llm_sft", SMALL_CHAT, "full"),
    Training("Qwen3-8B", "llm_sft", LARGE_CHAT, "QLoRA", QLORA),
    Training("Qwen3-8B", "llm_sft", LARGE_CHAT, "LoRA", LORA),
    Training("Qwen3-8B", "llm_sft", LARGE_CHAT, "full"),
)


def estimate(training: Training) -> RunEstimate:
    recipe = load_recipe(find_recipe(training.recipe))
    with tempfile.TemporaryDirectory() as folder:
        files.write_json(Path(folder) / "config.json", training.shape)
        own = [("model.source", folder), ("run.dir", f"{folder}/run"), *training.overrides]
        return estimate_run(resolve(training.recipe, recipe.Options, [find_recipe(training.recipe) / "config.yaml"], own), recipe)


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
    added = " ".join(f"`--{key} '{value}'`" if " " in value else f"`--{key} {value}`" for key, value in training.overrides)
    return [training.name, training.way, added or "–", *smallest(foreseen, 1), *smallest(foreseen, 8)]


def main() -> None:
    flags = _table.read_flags(__doc__)
    rows = [row(training) for training in (TRAININGS[:1] if flags.quick else TRAININGS)]
    _table.publish("hardware_table", flags, COLUMNS, rows, NOTE)


if __name__ == "__main__":
    main()
