"""The loss of a causal language model as terms, and the perplexity that is derived from it."""

from __future__ import annotations

import math

from torch import nn

from finetune.recipe import Batch, Term


def compute_terms(model: nn.Module, batch: Batch) -> dict[str, Term]:
    """One forward of a `CausalModel`: negative log-likelihood of the supervised tokens, and how many of them it predicted correctly."""
    nll, hits = model(batch.tensors, batch.lengths)
    return {"nll": Term(nll, 1.0), "accuracy": Term(hits, 0.0)}


def add_perplexity(means: dict[str, float]) -> dict[str, float]:
    """Adds the perplexity, e to the power of the mean negative log-likelihood."""
    return {**means, "perplexity": math.exp(min(means["nll"], 700.0))}
