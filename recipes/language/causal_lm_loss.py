"""The loss of a causal language model as terms, and the perplexity that is derived from it."""

from __future__ import annotations

import math

from torch import Tensor, nn

from overtone.finetune.recipe import BASE_DISTANCE, BaseDistance, Batch, Term
from overtone.recipes.language.collation import EXPERT_BALANCE


def compute_terms(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """Run a `CausalModel` once; return the negative log-likelihood of the supervised tokens, and how many of them it predicted correctly;
    with a loss that balances the experts, also that, which is a metric in evaluations and no part of their loss; with the states of a base
    in the batch, also the distance to it."""
    nll, hits, *others = model(batch.tensors, batch.lengths)
    terms = {"nll": Term(nll, 1.0), "accuracy": Term(hits, 0.0)}
    if model.balance_weight:
        terms[EXPERT_BALANCE] = Term(others.pop(0), float(model.balance_weight) if model.training else 0.0)  # type: ignore[arg-type]
    return {**terms, BASE_DISTANCE: Term(others[0], 1.0)} if others else terms


def compute_states(model: nn.Module, batch: Batch) -> Tensor:
    """Run a `CausalModel` once; return the states [M, H] from which the supervised tokens are predicted."""
    states: Tensor = model(batch.tensors, batch.lengths, result="states")
    return states


def find_head(model: nn.Module) -> str:
    """Return the path of the output head of a `CausalModel`."""
    return str(model.head_path)


COMPARISON = BaseDistance(states=compute_states, head=find_head, term="nll")
"""Compares the predictions of the supervised tokens with those of the base."""


def add_perplexity(means: dict[str, float]) -> dict[str, float]:
    """Adds the perplexity, e to the power of the mean negative log-likelihood."""
    return {**means, "perplexity": math.exp(min(means["nll"], 700.0))}
