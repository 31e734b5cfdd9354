"""The loss and the metrics of a batch of answers, as sums over answers or tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import REFERENCE, Batch, Term
from overtone.recipes.policy.policy_objectives import clip_surrogate, estimate_kl
from overtone.recipes.policy.policy_options import PolicyOptions
from overtone.recipes.policy.rollout_samples import CLIPPED, KL, LOSS, METRIC, MISMATCH, REWARD

Score = Callable[[nn.Module, Batch], Tensor]
"""One forward → the log-probability of each token of the answers [M] in nats, sample by sample."""


@dataclass(frozen=True)
class Bounds:
    """The numbers of the loss, which `attach_bounds` gives a model and `compute_terms` reads."""

    low: float
    high: float
    kl_weight: float


def attach_bounds(model: nn.Module, options: PolicyOptions) -> None:
    """Give a model the `bounds` that `compute_terms` reads."""
    model.__dict__["bounds"] = Bounds(options.clip_low, options.upper_clip, options.kl_weight)


def compute_terms(score: Score, model: nn.Module, batch: Batch) -> dict[str, Term]:
    """One forward: the loss of the answers, and their metrics. The loss of an evaluation is minus the reward, and needs no forward."""
    given = batch.tensors
    metrics = {name.removeprefix(METRIC): Term(given[name].sum(), 0.0) for name in given if name.startswith(METRIC)}
    if "rollout" not in given:
        return {LOSS: Term(-given[METRIC + REWARD].sum(), 1.0), **metrics}
    bounds: Bounds = model.__dict__["bounds"]
    scores = score(model, batch)
    ratios, advantages = scores - given["rollout"], given["advantages"]
    losses, found = clip_surrogate(ratios, advantages, bounds.low, bounds.high), ratios.detach()
    beyond = ((advantages > 0) & (found.exp() > 1 + bounds.high)) | ((advantages < 0) & (found.exp() < 1 - bounds.low))
    metrics |= {MISMATCH: Term(found.abs().sum(), 0.0), CLIPPED: Term(beyond.sum().to(scores.dtype), 0.0)}
    if (base := given.get(REFERENCE)) is not None:
        divergence = estimate_kl(base - scores)
        losses = losses + bounds.kl_weight * divergence
        metrics[KL] = Term(divergence.detach().sum(), 0.0)
    return {LOSS: Term((losses * given["weights"]).sum(), 1.0), **metrics}


def check_mismatch(means: Mapping[str, float], options: PolicyOptions) -> None:
    """Raises `UserError` if training computes other probabilities than generation, so that the importance ratios are wrong."""
    if not means[MISMATCH] <= options.max_mismatch:  # also NaN
        raise UserError(
            f"the log-probabilities of generation and training differ by {means[MISMATCH]:.4g} nats for a token on average, above "
            f"options.max_mismatch: {options.max_mismatch:g}; the update was not applied. Train with --train.precision fp32, or raise the "
            "limit"
        )
