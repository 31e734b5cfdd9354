"""The terms of a causal language model's loss: sums over targets, and a perplexity of their mean."""

from __future__ import annotations

import math
from typing import Any

import torch

from overtone.finetune.recipe import Batch
from overtone.recipes.language import causal_lm_loss


def test_the_model_gets_the_batch_and_accuracy_does_not_add_to_the_loss() -> None:
    batch = Batch({"ids": torch.tensor([[1, 2]])}, {"nll": 2, "accuracy": 2}, lengths=(1, 1))
    seen: list[Any] = []

    class Model(torch.nn.Module):
        balance_weight = 0.0

        def forward(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(arguments)
            return torch.tensor(4.0), torch.tensor(2.0)

    terms = causal_lm_loss.compute_terms(Model(), batch)
    assert seen == [(batch.tensors, (1, 1))]
    assert {name: (float(term.sum), term.weight) for name, term in terms.items()} == {"nll": (4.0, 1.0), "accuracy": (2.0, 0.0)}
    assert terms.keys() == batch.targets.keys()


def test_the_perplexity_is_that_of_the_mean_and_finite() -> None:
    assert causal_lm_loss.add_perplexity({"nll": 2.0, "loss": 2.0}) == {"nll": 2.0, "loss": 2.0, "perplexity": math.exp(2.0)}
    assert math.isfinite(causal_lm_loss.add_perplexity({"nll": 1e9})["perplexity"])
