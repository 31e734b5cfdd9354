"""The loss of models that compute several sums themselves and say how each counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overtone.finetune.recipe import Batch, Term

if TYPE_CHECKING:
    from torch import Tensor, nn


def compute_weighted_sums(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """Return what the model returns for the batch's tensors, fp32 sums over its targets by name, each with its weight in `model.weights`; 0
    for a metric."""
    sums: dict[str, Tensor] = model(batch.tensors)
    weights: dict[str, float] = model.weights  # type: ignore[assignment]
    return {name: Term(value, weights[name]) for name, value in sums.items()}
