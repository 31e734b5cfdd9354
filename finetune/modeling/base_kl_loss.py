"""The frozen base beside the model: its distance as a term of the loss (`train.base_distance`), so that a model keeps what its base knows,
and predictions that a recipe's own loss compares with (`Recipe.reference`).

`BaseHead` in finetune/modeling/loss_head.py defines and computes the distance. With adapters, the base is the model itself with the
adapters switched off, which needs no memory; without adapters, it is a frozen copy in the compute type that is sharded as the model is.
Either predicts in eval mode, without dropout, as in generation. The copy is no part of the model: no checkpoint and no export contains it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.lora_adapters import switch_off_adapters
from overtone.finetune.modeling.loss_head import BaseHead, LossHead
from overtone.finetune.recipe import BASE_DISTANCE, BASE_STATES, REFERENCE, Batch, Loaded, Recipe, Sample, Term


def check(weight: float, name: str, recipe: Recipe) -> None:
    """Raises `UserError` if the recipe cannot compare the model with its base. `weight`: `train.base_distance`; `name`: of the recipe."""
    if weight and recipe.base_distance is None:
        raise UserError(f"train.base_distance: {weight}, but the recipe {name} does not define `base_distance`; set train.base_distance: 0")


def needs_reference(options: BaseModel, recipe: Recipe) -> bool:
    """Return whether the recipe's own loss, with its `options`, needs predictions of the base that are computed in each step."""
    return recipe.reference is not None and recipe.reference.needed(options) and not has_cached_reference(options, recipe)


def has_cached_reference(options: BaseModel, recipe: Recipe) -> bool:
    """Return whether the recipe's own loss, with its `options`, needs predictions of the base that are computed once."""
    reference = recipe.reference
    return reference is not None and reference.cache is not None and reference.needed(options) and reference.cache.needed(options)


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


def load_base(loaded: Loaded, model: nn.Module, path: str | None, dtype: torch.dtype, fill: Callable[[Loaded], None]) -> nn.Module:
    """Return a frozen copy of the base in eval mode, sharded and filled; `path` is its head, with which that of `model` is compared from
    now on, or None if the copy predicts with its own. `loaded`: as the recipe's `load` returns it, of its own. `dtype`: compute type.
    `fill`: shards and fills a model. Collective: call on every rank."""
    base = loaded.model.eval().requires_grad_(False)
    for parameter in base.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    if path is not None:
        head: Any = base.get_submodule(path)
        base.set_submodule(path, BaseHead(head))
    fill(loaded)
    if path is not None:
        trained: Any = model.get_submodule(path)
        trained.set_base_head(base.get_submodule(path))
    return base


def add_term(recipe: Recipe, weight: float, base: nn.Module | None) -> Recipe:
    """Return the recipe with one more term in its loss, and in the counts of its batches; unchanged with a weight of 0. `base`: from
    `load_base`; None: the model itself without its adapters."""
    if not weight:
        return recipe
    comparison = recipe.base_distance
    assert comparison is not None  # `check`

    def count(batch: Batch) -> Batch:
        return replace(batch, targets={**batch.targets, BASE_DISTANCE: batch.targets[comparison.term]})

    def counted(make: Callable[[list[Sample]], Batch]) -> Callable[[list[Sample]], Batch]:
        return lambda samples: count(make(samples))

    def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
        states = predict_with_base(comparison.states, model, base, batch)
        terms = recipe.loss(model, replace(batch, tensors={**batch.tensors, BASE_STATES: states}))
        return {**terms, BASE_DISTANCE: Term(terms[BASE_DISTANCE].sum, weight)}

    return replace(recipe, loss=loss, collate=counted(recipe.collate), pack=None if recipe.pack is None else counted(recipe.pack))


def add_reference(recipe: Recipe, base: nn.Module | None) -> Recipe:
    """Return the recipe with the predictions of the base in the batches of its loss. `base` as in `add_term`."""
    reference = recipe.reference
    assert reference is not None  # `needs_reference`

    def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
        if recipe.rollouts is not None and not torch.is_grad_enabled():  # an evaluation scores answers and compares no policies
            return recipe.loss(model, batch)
        predictions = predict_with_base(reference.predict, model, base, batch)
        return recipe.loss(model, replace(batch, tensors={**batch.tensors, REFERENCE: predictions}))

    return replace(recipe, loss=loss)


def choose_divergence(options: BaseModel, recipe: Recipe) -> Recipe:
    """The recipe without its `Divergence` if its loss does not need it with these `options`."""
    reference = recipe.reference
    if reference is None or reference.divergence is None or reference.divergence.needed(options):
        return recipe
    return replace(recipe, reference=replace(reference, divergence=None))


@torch.no_grad()
def predict_with_base(predict: Callable[[nn.Module, Batch], Tensor], model: nn.Module, base: nn.Module | None, batch: Batch) -> Tensor:
    """Return the base's states or predictions [N, …] of a batch, before the forward of `model`: sharding prepares its backward pass in the
    last forward."""
    if base is not None:
        return predict(base, batch)
    with switch_off_adapters(model):
        return predict_in_eval_mode(predict, model, batch)


@torch.no_grad()
def predict_in_eval_mode(predict: Callable[[nn.Module, Batch], Tensor], model: nn.Module, batch: Batch) -> Tensor:
    """The model's predictions [N, …] of a batch without dropout. It keeps its mode."""
    mode = model.training
    model.eval()
    try:
        return predict(model, batch)
    finally:
        model.train(mode)
