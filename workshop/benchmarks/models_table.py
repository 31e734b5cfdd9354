"""Table of what works for each released model of every recipe, and of the GPU memory that it needs by `overtone plan`.

Nothing here ran on a GPU. The models are built from their published shapes; all settings are the recipe's.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.errors import UserError
from overtone.finetune.hardware.gpu_specs import GPUS, make_cluster
from overtone.finetune.planning.meta_device_estimate import RunEstimate
from overtone.finetune.planning.run_plan import plan_run
from overtone.finetune.recipe import ReleasedModel, find_recipe, load_recipe
from workshop.benchmarks import _table
from workshop.benchmarks._model_runs import find_runs
from workshop.benchmarks._released import LORA, QLORA, Overrides, estimate_model, released_models

WAYS: dict[str, Overrides] = {"full": (), "LoRA": LORA, "QLoRA": QLORA}
COLUMNS = (
    "model", "recipe", "run on", "parameters", *(f"{way}, GiB" for way in WAYS), "packing", "tensor parallel", "streaming", "languages",
    "licence",
)  # fmt: skip
NOTE = (
    "Run on: what has been trained here. tiny: a model of the architecture from a small config; shape: the released shape with random "
    "weights, on a GPU; released weights. `_model_runs.py` names the test or the record of each. "
    "Full, LoRA, QLoRA: the memory of one GPU that `overtone plan` estimates with the recipe's config (LoRA: "
    "`--model.lora '{rank: 16, alpha: 32}'`; QLoRA: with `--model.quantization nf4` too). `*`: with full activation checkpointing, since "
    f"it does not fit {max(gpu.memory for gpu in GPUS.values()):g} GiB without it. –: not possible. Packing and tensor parallel: "
    "`data.packing` and `parallel.tensor`. Streaming: inference returns the beginning of an answer before its end is generated. Languages "
    "and licence: as the model's makers state them. Other models of the same families work too, with `--model.source`. The rows come from "
    f"`released_models.py` in the folders of the recipes. Computed with transformers {version('transformers')}."
)
LARGEST = max(GPUS, key=lambda name: GPUS[name].memory)


def estimate_way(recipe: str, model: ReleasedModel, way: str) -> RunEstimate | None:
    """None if the model cannot be trained this way. Any model can be trained with all its weights."""
    try:
        return estimate_model(recipe, model, WAYS[way])
    except UserError:
        if way == "full":
            raise
        return None


def format_memory(foreseen: RunEstimate | None) -> str:
    """GiB of one GPU of the largest type; a dash if it is not possible."""
    if foreseen is None:
        return "–"
    best = plan_run(foreseen, make_cluster(LARGEST, 1, 1)).best
    if not best.fits:
        return "more than one GPU"
    return f"{best.memory.total / 2**30:.1f}" + ("" if best.recomputing == foreseen.work.recomputing else " *")


def describe_model(recipe: str, model: ReleasedModel) -> dict[str, str]:
    """The columns of a row that need no estimate."""
    return {
        "model": f"[{model.name}](https://huggingface.co/{model.name})",
        "recipe": f"`{recipe}`",
        "run on": ", ".join(find_runs(recipe, model.name, model.config.get("model_type"))) or "–",
        "packing": mark(load_recipe(find_recipe(recipe)).pack is not None),
        "streaming": mark(model.streaming),
        "languages": model.languages,
        "licence": model.licence,
    }


def make_row(recipe: str, model: ReleasedModel) -> dict[str, str]:
    """A row by its columns."""
    foreseen = {way: estimate_way(recipe, model, way) for way in WAYS}
    full = foreseen["full"]
    assert full is not None
    return {
        **describe_model(recipe, model),
        "parameters": f"{full.outline.total:,}",
        **{f"{way}, GiB": format_memory(each) for way, each in foreseen.items()},
        "tensor parallel": mark(full.work.refuses_tensor(2) is None),
    }


def mark(works: bool) -> str:
    return "yes" if works else "–"


def main() -> None:
    flags = _table.read_flags(__doc__)
    found = released_models()
    rows = [make_row(recipe, model) for recipe, model in (found[:1] if flags.quick else found)]
    _table.publish("models_table", flags, COLUMNS, [[row[column] for column in COLUMNS] for row in rows], NOTE)


if __name__ == "__main__":
    main()
