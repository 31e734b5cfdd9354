"""Estimates of `overtone plan` for the released models of the recipes, which exist here in shape only."""

from __future__ import annotations

import tempfile
from pathlib import Path

from overtone.finetune.config import resolve
from overtone.finetune.planning.meta_device_estimate import RunEstimate, estimate_run
from overtone.finetune.recipe import ReleasedModel, built_in_recipes, find_recipe, load_recipe, load_released_models
from overtone.finetune.storage import files

Overrides = tuple[tuple[str, str], ...]
LORA: Overrides = (("model.lora", "{rank: 16, alpha: 32}"),)
QLORA: Overrides = (*LORA, ("model.quantization", "nf4"))


def released_models() -> list[tuple[str, ReleasedModel]]:
    """(recipe, model) of every recipe folder, in the order of their names and of their own lists."""
    return [(recipe, model) for recipe in built_in_recipes() for model in load_released_models(find_recipe(recipe))]


def estimate_model(recipe: str, model: ReleasedModel, overrides: Overrides = ()) -> RunEstimate:
    """The estimate with the recipe's config.yaml. Raises `UserError` for a way in which the model cannot be trained."""
    folder_of_recipe = find_recipe(recipe)
    maker = load_recipe(folder_of_recipe)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in {"config.json": model.config, **model.files}.items():
            files.make_folder((Path(folder) / name).parent)
            files.write_json(Path(folder) / name, content)
        own = [("model.source", folder), ("run.dir", f"{folder}/run"), *model.overrides, *overrides]
        return estimate_run(resolve(recipe, maker.Options, [folder_of_recipe / "config.yaml"], own), maker)
