"""Which parameters a run trains: the recipe's, or LoRA's adapters."""

from __future__ import annotations

from finetune.config import Config
from finetune.distributed import sharding
from finetune.modeling import loading, lora_adapters, quantization
from finetune.recipe import Loaded, Recipe


def choose_trained(loaded: Loaded, recipe: Recipe, config: Config) -> None:
    """Freeze all parameters but those that the recipe trains, or all but LoRA's adapters. Frozen ones are kept in the compute type."""
    if config.model.lora is None:
        loading.freeze(loaded.model, loaded.trainable, sharding.compute_dtype(config))
        return
    lora_adapters.inject_adapters(loaded.model, config.model.lora, recipe.lora_targets)
    if config.model.quantization:
        quantization.quantize_base(loaded.model)
    loading.freeze(loaded.model, lora_adapters.is_adapter, sharding.compute_dtype(config))
