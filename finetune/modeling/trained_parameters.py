"""Chooses the parameters that a run trains: the recipe's, or LoRA's adapters; and in both cases those that the base lacks."""

from __future__ import annotations

import torch

from overtone.finetune.config import Model
from overtone.finetune.modeling import added_parameters, loading, lora_adapters, quantization
from overtone.finetune.recipe import Loaded, Recipe


def choose_trained(loaded: Loaded, recipe: Recipe, model: Model, dtype: torch.dtype) -> None:
    """Freeze all parameters but those that the recipe trains, or all but LoRA's adapters; `Loaded.added` is trained in both cases. Frozen
    parameters are kept in `dtype`."""
    added = loaded.added
    added_parameters.check_names(loaded.model, added)
    if model.lora is None:
        loading.freeze(loaded.model, lambda name: name in added or loaded.trainable(name), dtype)
        return
    targets = loaded.lora_targets or recipe.lora_targets
    lora_adapters.inject_adapters(loaded.model, model.lora, targets, added_parameters.owning_modules(added))
    if model.quantization:
        quantization.quantize_base(loaded.model)
    loading.freeze(loaded.model, lambda name: name in added or lora_adapters.is_adapter(name), dtype)
