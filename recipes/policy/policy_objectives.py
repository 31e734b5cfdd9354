"""The loss of a token by the clipped surrogate, and the three objectives, which differ in the advantages and in what a token weighs.

With r = π(token) / π_rollout(token), A the advantage of the token's answer and T the tokens of answers o₁ … o_G to a prompt, all of them
minimize

    Σ_answers Σ_tokens weight · (−min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A) + β·KL) / count

where `count` is the number of answers, or, for DAPO, of tokens, of the step on all ranks. An answer that is left out since a reward of it
failed is in neither sum, and not in `count`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from overtone.recipes.policy.policy_options import ObjectiveName

LEAST_SPREAD = 1e-9
"""Rewards of a group that differ by less, relative to the largest one, are equal up to rounding: the group has no variance."""


def clip_surrogate(log_ratios: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Return −min(r·A, clip(r, 1 − low, 1 + high)·A) of each token [M]: Schulman et al. 2017, arXiv:1707.06347, eq. 7; with high above low
    the "clip-higher" of DAPO (Yu et al. 2025, arXiv:2503.14476, eq. 8). `log_ratios` [M]: log π − log π_rollout; `advantages` [M]."""
    ratios = log_ratios.exp()
    return -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)


def estimate_kl(log_ratios: Tensor) -> Tensor:
    """Return π_base/π − log(π_base/π) − 1 of each token [M], an estimate of KL(π‖π_base) that is never below 0: Shao et al. 2024,
    arXiv:2402.03300, eq. 4. `log_ratios` [M]: log π_base − log π."""
    return log_ratios.exp() - log_ratios - 1


def has_variance(rewards: Sequence[float]) -> bool:
    """Return whether the rewards of a group differ by more than rounding; one alone, or none, does not."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > LEAST_SPREAD * max(1.0, *map(abs, rewards))


def center(rewards: Sequence[float]) -> list[float]:
    """Return each reward minus the mean of its group; zeros without variance."""
    if not has_variance(rewards):
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


def normalize(rewards: Sequence[float]) -> list[float]:
    """Return (reward − mean) / standard deviation of its group, the sample's (n − 1): Shao et al. 2024, section 4.1.2; zeros without
    variance."""
    if not has_variance(rewards):
        return [0.0] * len(rewards)
    deviation = statistics.stdev(rewards)
    return [difference / deviation for difference in center(rewards)]


def weigh_token(objective: ObjectiveName, tokens: int, longest: int) -> float:
    """Return the weight of each token of an answer with `tokens` tokens; `longest`: the limit of an answer.

    grpo: 1 / |o|, the mean over each answer's tokens, of which the mean over answers is taken (Shao et al. 2024, eq. 3). dr_grpo: 1 / the
    limit, a constant, because 1 / |o| favours long wrong answers (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783, section 3.2, whose code
    divides by the limit). dapo: 1, the token-level loss (Yu et al. 2025, eq. 8), whose sum over tokens is divided by their number: as in
    the code of its authors that of all tokens of the step, so that a token counts the same in each group.
    """
    return {"grpo": 1 / tokens, "dr_grpo": 1 / longest, "dapo": 1.0}[objective]


def find_advantages(objective: ObjectiveName, rewards: Sequence[float | None]) -> list[float]:
    """Return the advantage of each answer of a group from their rewards: centred for dr_grpo, otherwise also normalized. An answer whose
    reward is unknown, None, has the advantage 0, and no part in the mean and the deviation of the others."""
    known = [reward for reward in rewards if reward is not None]
    found = iter(center(known) if objective == "dr_grpo" else normalize(known))
    return [0.0 if reward is None else next(found) for reward in rewards]


def count_targets(objective: ObjectiveName, tokens: int) -> int:
    """Return what an answer adds to the divisor of the loss: its tokens for dapo, otherwise 1."""
    return tokens if objective == "dapo" else 1
