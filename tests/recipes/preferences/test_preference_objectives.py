"""Tests of `overtone.recipes.preferences.preference_objectives` with values computed by hand from the papers' equations."""

from __future__ import annotations

import math

import pytest
import torch

from overtone.recipes.llm_dpo.options import Options
from overtone.recipes.preferences.preference_objectives import OBJECTIVES, LabelledScores, Scores, Strengths, find_rewards, kto
from overtone.recipes.preferences.preference_options import Objective

CHOSEN, REJECTED, BASE_CHOSEN, BASE_REJECTED = -12.0, -20.0, -14.0, -18.0
LONG, SHORT = 6, 4
DIFFERENCE = (CHOSEN - BASE_CHOSEN) - (REJECTED - BASE_REJECTED)


def scores(base: bool = True, swapped: bool = False) -> Scores:
    columns = [1, 0] if swapped else [0, 1]
    model, reference, tokens = (
        torch.tensor([pair], dtype=torch.float64)[:, columns] for pair in ((CHOSEN, REJECTED), (BASE_CHOSEN, BASE_REJECTED), (LONG, SHORT))
    )
    return Scores(model, reference if base else None, tokens)


def loss(name: Objective, found: Scores, beta: float, margin: float = 1.0, smoothing: float = 0.0, normalized: bool = False) -> float:
    (value,) = OBJECTIVES[name](found, Strengths(beta, margin, smoothing, normalized)).tolist()
    return float(value)


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


def test_every_objective_of_the_options_has_a_loss() -> None:
    assert {*OBJECTIVES, "kto"} == set(Options.model_fields["objective"].annotation.__args__)  # type: ignore[union-attr]


def test_dpo_is_the_logistic_loss_of_the_log_ratios() -> None:
    assert loss("dpo", scores(), 0.1) == pytest.approx(softplus(-0.1 * DIFFERENCE), rel=1e-12)
    assert loss("dpo", scores(swapped=True), 0.1) == pytest.approx(softplus(0.1 * DIFFERENCE), rel=1e-12)
    of_tokens = (CHOSEN - BASE_CHOSEN) / LONG - (REJECTED - BASE_REJECTED) / SHORT
    assert loss("dpo", scores(), 0.1, normalized=True) == pytest.approx(softplus(-0.1 * of_tokens), rel=1e-12)


def test_conservative_dpo_mixes_the_loss_of_the_swapped_pair() -> None:
    expected = 0.8 * softplus(-0.1 * DIFFERENCE) + 0.2 * softplus(0.1 * DIFFERENCE)
    assert loss("dpo", scores(), 0.1, smoothing=0.2) == pytest.approx(expected, rel=1e-12)


def test_ipo_is_the_squared_distance_to_half_of_one_over_beta() -> None:
    assert loss("ipo", scores(), 0.2) == pytest.approx((DIFFERENCE - 2.5) ** 2, rel=1e-12)


def test_orpo_adds_the_odds_ratio_to_the_likelihood() -> None:
    chosen, rejected = math.exp(CHOSEN / LONG), math.exp(REJECTED / SHORT)
    ratio = math.log(chosen / (1 - chosen)) - math.log(rejected / (1 - rejected))
    assert loss("orpo", scores(base=False), 0.3) == pytest.approx(-CHOSEN / LONG + 0.3 * softplus(-ratio), rel=1e-12)


@pytest.mark.parametrize("means", [(0.0, -1.0), (-1.0, 0.0), (0.0, 0.0), (-1e-8, -1e-8), (-1e-3, -2e-3), (-80.0, -1.0)])
def test_orpo_of_sure_answers_is_finite(means: tuple[float, float]) -> None:
    """In fp32, in which 1 − p rounds to 0."""
    model = torch.tensor([means], requires_grad=True)
    (value,) = OBJECTIVES["orpo"](Scores(model, None, torch.ones(1, 2)), Strengths(0.1, 0.0, 0.0, False))
    value.backward()
    assert math.isfinite(value.detach()) and model.grad is not None and bool(model.grad.isfinite().all())


def test_simpo_compares_means_with_a_margin() -> None:
    reward = 2 * (CHOSEN / LONG - REJECTED / SHORT)
    assert loss("simpo", scores(base=False), 2.0, margin=0.5) == pytest.approx(softplus(0.5 - reward), rel=1e-12)


@pytest.mark.parametrize(("divergence", "point"), [(1.5, 1.5), (-3.0, 0.0)])
def test_kto_weighs_the_distance_to_the_reference_point(divergence: float, point: float) -> None:
    model, base = torch.tensor([-12.0, -20.0], dtype=torch.float64), torch.tensor([-14.0, -18.0], dtype=torch.float64)
    scores = LabelledScores(model, base, torch.tensor([True, False]), torch.tensor(divergence, dtype=torch.float64))
    losses = kto(scores, Strengths(0.1, 0.0, 0.0, False, desirable_weight=1.3, undesirable_weight=0.7)).tolist()
    chosen, rejected = (1 / (1 + math.exp(-value)) for value in (0.1 * (2 - point), 0.1 * (point + 2)))
    assert losses == pytest.approx([1.3 * (1 - chosen), 0.7 * (1 - rejected)], rel=1e-12)


def test_rewards_are_log_ratios_or_means() -> None:
    def rewards(found: Scores, normalized: bool = False) -> list[float]:
        return find_rewards(found, Strengths(0.5, 0.0, 0.0, normalized))[0].tolist()

    assert rewards(scores()) == [1.0, -1.0] and rewards(scores(base=False)) == [-1.0, -2.5]
    assert rewards(scores(), normalized=True) == pytest.approx([1 / LONG, -1 / SHORT])
