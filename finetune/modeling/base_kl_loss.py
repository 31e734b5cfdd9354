"""The distance to the frozen base as a term of the loss (`train.base_distance`), so that a model keeps what its base knows.

`BaseHead` in finetune/modeling/loss_head.py defines and computes it. With adapters, the base is the model itself with the adapters switched
off, which needs no memory; without adapters, it is a frozen copy in the compute type that is sharded as the model is. Either predicts in
eval mode, without dropout, as in generation. The copy is no part of the model: no checkpoint and no export contains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.lora_adapters import switch_off_adapters
from overtone.finetune.modeling.loss_head import BaseHead, LossHead
from overtone.finetune.recipe import BASE_DISTANCE, BASE_STATES, BaseDistance, Batch, Loaded, Recipe, Sample, Term


def check(weight: float, name: str, recipe: Recipe) -> None:
    """Raises `UserError` if the recipe cannot compare the model with its base. `weight`: `train.base_distance`; `name`: of the recipe."""
    if weight and recipe.base_distance is None:
        raise UserError(f"train.base_distance: {weight}, but the recipe {name} does not define `base_distance`; set train.base_distance: 0")


def check_model(loaded: Loaded, recipe: Recipe, weight: float) -> None:
    """Raises `UserError` for a model without a base of the same shape, or with an adapter on the head that is compared. Call it when
    adapters are injected."""
    if not weight or recipe.base_distance is None:
        return
    setting = f"train.base_distance: {weight}"
    if loaded.added:
        missing = ", ".join(sorted(loaded.added))
        raise UserError(f"{setting}, but the base has no {missing}, so it makes no predictions to keep; set it to 0")
    head = recipe.base_distance.head(loaded.model)
    if not isinstance(loaded.model.get_submodule(head), LossHead):
        raise UserError(f"{setting} with an adapter on the output head {head}: exclude it with model.lora.targets, or set it to 0")


def load_base(loaded: Loaded, model: nn.Module, path: str, dtype: torch.dtype, fill: Callable[[Loaded], None]) -> nn.Module:
    """A frozen copy of the base in eval mode, sharded and filled; `path` is its head, with which that of `model` is compared from now on.
    `loaded`: as the recipe's `load` returns it, of its own. `dtype`: compute type. `fill`: shards and fills a model. Collective: call on
    every rank."""
    base = loaded.model.eval().requires_grad_(False)
    for parameter in base.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    trained: Any = model.get_submodule(path)
    head: Any = base.get_submodule(path)
    base.set_submodule(path, BaseHead(head))
    fill(loaded)
    trained.set_base_head(base.get_submodule(path))
    return base


def add_term(recipe: Recipe, weight: float, base: nn.Module | None) -> Recipe:
    """The recipe with one more term in its loss, and in the counts of its batches. `base`: from `load_base`; None: the model itself without
    its adapters."""
    comparison = recipe.base_distance
    assert comparison is not None  # `check`

    def count(batch: Batch) -> Batch:
        return replace(batch, targets={**batch.targets, BASE_DISTANCE: batch.targets[comparison.term]})

    def counted(make: Callable[[list[Sample]], Batch]) -> Callable[[list[Sample]], Batch]:
        return lambda samples: count(make(samples))

    def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
        states = compute_base_states(comparison, model, base, batch)
        terms = recipe.loss(model, replace(batch, tensors={**batch.tensors, BASE_STATES: states}))
        return {**terms, BASE_DISTANCE: Term(terms[BASE_DISTANCE].sum, weight)}

    return replace(recipe, loss=loss, collate=counted(recipe.collate), pack=None if recipe.pack is None else counted(recipe.pack))


@torch.no_grad()
def compute_base_states(comparison: BaseDistance, model: nn.Module, base: nn.Module | None, batch: Batch) -> Tensor:
    """The base's states [N, H] of a batch, before the forward of `model`: sharding prepares its backward pass in the last forward."""
    if base is not None:
        return comparison.states(base, batch)
    mode = model.training
    model.eval()
    try:
        with switch_off_adapters(model):
            return comparison.states(model, batch)
    finally:
        model.train(mode)
