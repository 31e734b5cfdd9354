"""Tests of `overtone.recipes.speech.multi_term_loss`."""

from __future__ import annotations

from typing import ClassVar

import torch

from overtone.finetune.recipe import Batch, Term
from overtone.recipes.speech.multi_term_loss import compute_weighted_sums


class Doubling(torch.nn.Module):
    weights: ClassVar = {"first": 1.0, "hits": 0.0}

    def forward(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"first": 2 * tensors["x"].sum(), "hits": tensors["x"].sum()}


def test_each_sum_has_the_weight_that_the_model_gives_it() -> None:
    found = compute_weighted_sums(Doubling(), Batch({"x": torch.ones(3)}, targets={"first": 3, "hits": 3}))
    assert found == {"first": Term(torch.tensor(6.0), 1.0), "hits": Term(torch.tensor(3.0), 0.0)}
