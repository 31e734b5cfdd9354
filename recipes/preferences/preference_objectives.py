"""The loss of a pair of answers by each objective, and of an answer with a label. A new objective is one function here, one name in
`preference_options.Objective`, and one test.

All return the loss [B] of each of B pairs or answers, without a mean: the training divides by the number of all of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from overtone.recipes.preferences.preference_options import Objective

LARGEST_LOG_PROBABILITY = -1e-6
"""In nats: ORPO computes the odds of surer answers with this mean."""


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of B pairs of answers; column 0 is the chosen one."""

    model: Tensor
    """[B, 2] Σ log π(token) over an answer's tokens."""
    base: Tensor | None
    """[B, 2] the same by the base; None for an objective without a reference."""
    tokens: Tensor
    """[B, 2] number of tokens of each answer."""

    @property
    def log_ratios(self) -> Tensor:
        """[B, 2] log π(answer) − log π_base(answer)."""
        assert self.base is not None
        return self.model - self.base

    @property
    def means(self) -> Tensor:
        """[B, 2] mean log-probability of a token."""
        return self.model / self.tokens


@dataclass(frozen=True)
class LabelledScores:
    """Log-probabilities of B answers with labels."""

    model: Tensor
    """[B] Σ log π(token) over an answer's tokens."""
    base: Tensor
    """[B] the same by the base."""
    desirable: Tensor
    """[B] bool, the labels."""
    divergence: Tensor
    """[] mean over the step of log π − log π_base of answers of other prompts: an estimate of KL(π‖π_base), which can be below 0."""

    @property
    def reference_point(self) -> Tensor:
        """[] the z₀ of KTO: the estimate, but at least 0, as a KL divergence is."""
        return self.divergence.clamp(min=0)


@dataclass(frozen=True)
class Strengths:
    """The numbers of an objective: `PreferenceOptions` has their meaning."""

    beta: float
    margin: float
    label_smoothing: float
    length_normalized: bool
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0

    def difference(self, scores: Scores) -> Tensor:
        """[B] log-ratio of the chosen answer minus that of the rejected one, of a token if `length_normalized`."""
        ratios = scores.log_ratios / scores.tokens if self.length_normalized else scores.log_ratios
        return ratios[:, 0] - ratios[:, 1]


def dpo(scores: Scores, by: Strengths) -> Tensor:
    """−log σ(β · difference of the log-ratios): Rafailov et al. 2023, arXiv:2305.18290, eq. 7. With `label_smoothing` ε, 1 − ε times that
    and ε times the loss of the swapped pair (Mitchell 2023, A note on DPO with noisy preferences & conservative DPO)."""
    logits = by.beta * by.difference(scores)
    return -(1 - by.label_smoothing) * logsigmoid(logits) - by.label_smoothing * logsigmoid(-logits)


def ipo(scores: Scores, by: Strengths) -> Tensor:
    """(difference of the log-ratios − 1 / 2β)²: Azar et al. 2023, arXiv:2310.12036, eq. 17, whose τ is β."""
    return (by.difference(scores) - 1 / (2 * by.beta)).square()


def orpo(scores: Scores, by: Strengths) -> Tensor:
    """−mean log π of the chosen answer's tokens − β · log σ(log odds ratio), with odds p / (1 − p) where log p is a token's mean: Hong et
    al. 2024, arXiv:2403.07691, eq. 6 and 7, whose λ is β."""
    means = scores.means
    # Of an answer that the model is sure of, 1 − p rounds to 0 in fp32: its odds would be infinite, and its gradient NaN.
    low = means.clamp(max=LARGEST_LOG_PROBABILITY)
    odds = low - torch.log(-torch.expm1(low))
    return -means[:, 0] - by.beta * logsigmoid(odds[:, 0] - odds[:, 1])


def simpo(scores: Scores, by: Strengths) -> Tensor:
    """−log σ(β · difference of the mean log π − γ): Meng et al. 2024, arXiv:2405.14734, eq. 6, whose γ is `margin`."""
    means = scores.means
    return -logsigmoid(by.beta * (means[:, 0] - means[:, 1]) - by.margin)


def kto(scores: LabelledScores, by: Strengths) -> Tensor:
    """λ · (1 − σ(±β · (log-ratio − z₀))), with + and λ `desirable_weight` for a desirable answer, − and `undesirable_weight` for another:
    Ethayarajh et al. 2024, arXiv:2402.01306, eq. 7. z₀ has no gradient."""
    distances = by.beta * (scores.model - scores.base - scores.reference_point)
    # `where` of two plain numbers is fp32, whatever the model's type.
    desirable, undesirable = (distances.new_full((), weight) for weight in (by.desirable_weight, by.undesirable_weight))
    weights = torch.where(scores.desirable, desirable, undesirable)
    return weights * torch.sigmoid(torch.where(scores.desirable, -distances, distances))


OBJECTIVES: dict[Objective, Callable[[Scores, Strengths], Tensor]] = {"dpo": dpo, "ipo": ipo, "orpo": orpo, "simpo": simpo}
"""The objectives of pairs."""


def find_rewards(scores: Scores, by: Strengths) -> Tensor:
    """[B, 2] rewards of the answers: β times the log-ratio, or, without a reference, β times the mean log-probability of a token."""
    if scores.base is None:
        return by.beta * scores.means
    return by.beta * (scores.log_ratios / scores.tokens if by.length_normalized else scores.log_ratios)
