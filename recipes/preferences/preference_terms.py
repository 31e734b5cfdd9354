"""The loss and the metrics of a batch of answers, as sums over pairs, answers or tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from overtone.finetune.recipe import DIVERGENCE, REFERENCE, Batch, Term
from overtone.recipes.preferences.batch_targets import ANSWER_LABELS, KL, LABEL_METRICS, LOSS, PAIR_METRICS, SIDE_METRICS
from overtone.recipes.preferences.preference_objectives import OBJECTIVES, LabelledScores, Scores, Strengths, find_rewards, kto
from overtone.recipes.preferences.preference_options import Objective, PreferenceOptions

Score = Callable[[nn.Module, Batch], Tensor]
"""One forward → the log-probability of each token of the answers [M] in nats, sample by sample."""


@dataclass(frozen=True)
class ObjectiveChoice:
    """The objective with its numbers, which `attach_objective` gives a model and `compute_terms` reads."""

    name: Objective
    strengths: Strengths


def attach_objective(model: nn.Module, options: PreferenceOptions, desirable_weight: float = 1.0, undesirable_weight: float = 1.0) -> None:
    """Give a model the `objective` that `compute_terms` reads. The weights are those of labelled answers."""
    strengths = Strengths(
        options.strength, options.margin, options.label_smoothing, options.length_normalized, desirable_weight, undesirable_weight
    )
    model.__dict__["objective"] = ObjectiveChoice(options.objective, strengths)


def sum_answers(scores: Tensor, answers: Tensor) -> Tensor:
    """The sum [K] over each answer's tokens. `scores` [M], of each token; `answers` [K, A] as in a batch."""
    # Gathered, because `index_add` would add in another order each time on a GPU.
    return torch.cat([scores, scores.new_zeros(1)])[answers].sum(1)


def compute_terms(score: Score, model: nn.Module, batch: Batch) -> dict[str, Term]:
    """One forward: the loss of the pairs or labelled answers, and their metrics."""
    choice: ObjectiveChoice = model.__dict__["objective"]
    answers, base = batch.tensors["answers"], batch.tensors.get(REFERENCE)
    scores = score(model, batch)
    of_model, of_base = sum_answers(scores, answers), None if base is None else sum_answers(base, answers)
    tokens = (answers < len(scores)).sum(1)
    if ANSWER_LABELS in batch.tensors:
        assert of_base is not None  # kto needs a reference
        labelled = LabelledScores(of_model, of_base, batch.tensors[ANSWER_LABELS], batch.tensors[DIVERGENCE])
        terms = _compute_labelled_terms(labelled, tokens, choice.strengths)
    else:
        sides = [None if each is None else each.view(-1, 2) for each in (of_model, of_base, tokens)]
        assert sides[0] is not None and sides[2] is not None
        terms = _compute_pair_terms(Scores(sides[0], sides[1], sides[2]), choice)
    if base is None:
        return terms
    # The estimator k2 of KL(π‖π_base) for a token, (log π / π_base)² / 2 (Schulman 2020, Approximating KL divergence). Its k3 contains
    # π_base / π, which is astronomic for a token of a rejected answer that the model has learned not to write.
    return {**terms, KL: Term((base - scores.detach()).square().sum() / 2, 0.0)}


def _compute_pair_terms(scores: Scores, choice: ObjectiveChoice) -> dict[str, Term]:
    losses = OBJECTIVES[choice.name](scores, choice.strengths)
    rewards, found, tokens = find_rewards(scores, choice.strengths).detach(), scores.model.detach(), scores.tokens
    margins, longer = rewards[:, 0] - rewards[:, 1], tokens[:, 0] - tokens[:, 1]
    metrics = dict(zip(PAIR_METRICS, (margins > 0, margins, margins * longer > 0, longer > 0), strict=True))
    for side, names in enumerate(SIDE_METRICS):
        metrics |= zip(names, (rewards[:, side], found[:, side], tokens[:, side]), strict=True)
    return {LOSS: Term(losses.sum(), 1.0), **_sum_metrics(metrics, losses.dtype)}


def _compute_labelled_terms(scores: LabelledScores, tokens: Tensor, by: Strengths) -> dict[str, Term]:
    losses, found = kto(scores, by), scores.model.detach()
    ratios, point = found - scores.base, scores.reference_point
    right = (ratios > point) == scores.desirable
    metrics = dict(zip(LABEL_METRICS, (right, scores.divergence.expand_as(found), scores.desirable), strict=True))
    for names, own in zip(SIDE_METRICS, (scores.desirable, ~scores.desirable), strict=True):
        metrics |= {name: values * own for name, values in zip(names, (by.beta * ratios, found, tokens), strict=True)}
    return {LOSS: Term(losses.sum(), 1.0), **_sum_metrics(metrics, losses.dtype)}


def _sum_metrics(values: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Term]:
    return {name: Term(each.sum().to(dtype), 0.0) for name, each in values.items()}


def report_means(means: dict[str, float]) -> dict[str, float]:
    """The means, of labelled answers without the metrics of a label that no answer had, and with the `margin` between both labels."""
    share = means.get("desirable")
    if share is None:
        return means
    absent = SIDE_METRICS[1] if share == 1 else SIDE_METRICS[0] if share == 0 else ()
    found = {name: value for name, value in means.items() if name not in absent}
    return found if absent else {**found, "margin": means["chosen_reward"] - means["rejected_reward"]}
