"""The equations of GRPO, Dr. GRPO and DAPO, by numbers that are computed by hand."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch

from overtone.recipes.policy.policy_objectives import (
    clip_surrogate,
    count_targets,
    estimate_kl,
    find_advantages,
    has_variance,
    weigh_token,
)

RATIOS = torch.tensor([0.5, 0.79, 0.81, 1.0, 1.19, 1.25, 1.3, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("high", [0.2, 0.28])
def test_a_ratio_counts_between_both_bounds(high: float) -> None:
    """Beyond a bound there is no gradient for what would move the ratio further, and the full one for what brings it back."""
    for advantage in (2.0, -3.0):
        log_ratios = RATIOS.log().requires_grad_()
        losses = clip_surrogate(log_ratios, torch.full_like(RATIOS, advantage), 0.2, high)
        losses.sum().backward()
        for ratio, loss, slope in zip(RATIOS.tolist(), losses.tolist(), log_ratios.grad.tolist(), strict=True):  # type: ignore[union-attr]
            clipped = min(ratio, 1 + high) if advantage > 0 else max(ratio, 0.8)
            assert loss == pytest.approx(-advantage * clipped)
            assert slope == pytest.approx(-advantage * ratio if clipped == ratio else 0.0)


def test_the_divergence_is_zero_for_equal_models_and_never_below() -> None:
    log_ratios = torch.tensor([-2.0, -0.1, 0.0, 0.1, 2.0], dtype=torch.float64)
    found = estimate_kl(log_ratios)
    assert found[2] == 0 and bool((found[[0, 1, 3, 4]] > 0).all())
    assert found.tolist() == pytest.approx([math.exp(each) - each - 1 for each in log_ratios.tolist()])


def test_advantages_are_centred_and_those_of_grpo_and_dapo_have_unit_deviation() -> None:
    rewards = [1.0, 0.0, 0.0, 3.0]
    assert find_advantages("dr_grpo", rewards) == pytest.approx([0.0, -1.0, -1.0, 2.0])
    for objective in ("grpo", "dapo"):
        found = find_advantages(objective, rewards)  # type: ignore[arg-type]
        assert statistics.fmean(found) == pytest.approx(0) and statistics.stdev(found) == pytest.approx(1)
        assert found[3] == pytest.approx(2 / statistics.stdev(rewards))


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo", "dapo"])
@pytest.mark.parametrize("rewards", [[0.0] * 4, [0.7] * 3, [0.1 + 0.2, 0.3], [1e9, 1e9 + 1e-3]])
def test_a_group_without_variance_has_no_advantages(objective: str, rewards: list[float]) -> None:
    assert not has_variance(rewards) and find_advantages(objective, rewards) == [0.0] * len(rewards)  # type: ignore[arg-type]


def test_a_small_difference_is_a_variance() -> None:
    assert has_variance([0.0, 1e-6]) and find_advantages("grpo", [0.0, 1e-6])[1] == pytest.approx(2**-0.5)


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo", "dapo"])
def test_an_answer_with_an_unknown_reward_changes_no_advantage_of_the_others(objective: Any) -> None:
    known = find_advantages(objective, [1.0, 0.0, 3.0])
    assert find_advantages(objective, [None, 1.0, 0.0, None, 3.0]) == [0.0, *known[:2], 0.0, known[2]]
    for alone in ([None, 1.0], [None, None], []):
        assert find_advantages(objective, alone) == [0.0] * len(alone)
    assert not has_variance([]) and not has_variance([1.0])


def test_the_weight_of_a_token_depends_on_the_objective() -> None:
    assert [weigh_token(name, 5, 40) for name in ("grpo", "dr_grpo", "dapo")] == [1 / 5, 1 / 40, 1.0]  # type: ignore[arg-type]
    assert [count_targets(name, 5) for name in ("grpo", "dr_grpo", "dapo")] == [1, 1, 5]  # type: ignore[arg-type]
