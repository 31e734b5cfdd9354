"""Which parameters are trained, with and without LoRA."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from overtone.finetune.distributed import sharding
from overtone.finetune.modeling.trained_parameters import choose_trained
from tests.finetune import tiny


def trained(folder: Path, *overrides: tuple[str, str], trainable: str = "") -> set[str]:
    config = tiny.config_in(folder, *overrides)
    loaded = replace(tiny.RECIPE.load(config), trainable=lambda name: trainable in name)
    choose_trained(loaded, tiny.RECIPE, config.model, sharding.compute_dtype(config.train.precision))
    frozen = {parameter.dtype for parameter in loaded.model.parameters() if not parameter.requires_grad}
    assert frozen <= {sharding.compute_dtype(config.train.precision)}
    return {name for name, parameter in loaded.model.named_parameters() if parameter.requires_grad}


def test_the_recipe_chooses_what_full_fine_tuning_trains(tmp_path: Path) -> None:
    everything = trained(tmp_path)
    some = sorted(everything)[0]
    assert len(everything) > 1
    assert some in trained(tmp_path, trainable=some) < everything


def test_lora_trains_its_adapters_alone(tmp_path: Path) -> None:
    names = trained(tmp_path, ("model.lora", "{rank: 2}"), ("train.precision", "bf16"))
    assert names and all("lora" in name for name in names)
