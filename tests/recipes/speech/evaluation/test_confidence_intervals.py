"""Tests of `overtone.recipes.speech.evaluation.confidence_intervals`: coverage, exact small cases, ties."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from overtone.recipes.speech.evaluation.confidence_intervals import Array, Interval, draw_subsets, find_interval, least_texts


def interval_of_mean(values: Array, comparisons: int = 1) -> Interval:
    subsets = draw_subsets(len(values), comparisons)
    return find_interval(float(values.mean()), (subsets @ values) / subsets.sum(axis=1), comparisons)


def test_an_interval_excludes_zero_only_if_a_sign_flip_test_rejects_it() -> None:
    """Both sides have the longer length, so that it may include a zero that the test of one side rejects."""
    chance, verdicts = np.random.default_rng(0), set()
    for _ in range(60):
        values = np.round(chance.normal(0.6, 1.0, 8), 2)
        flipped = np.array(list(product((-1, 1), repeat=8))) @ values
        rejected = float((flipped >= values.sum() - 1e-9).mean()) <= 0.025
        found = interval_of_mean(values)
        assert found.low is not None
        if found.is_clear and found.value > 0:
            assert rejected, "no difference is clear that the test does not find"
        verdicts.add((rejected, found.is_clear))
    assert verdicts >= {(True, True), (False, False)}


def test_an_interval_of_many_values_is_that_of_their_mean() -> None:
    """1.96 standard errors to each side; 90 % would be 1.645, 99 % 2.576."""
    values = np.random.default_rng(1).normal(0.3, 1.0, 400)
    found, error = interval_of_mean(values), values.std() / math.sqrt(400)
    assert found.low is not None and found.high is not None
    assert found.high - found.value == pytest.approx(found.value - found.low)
    assert (found.high - found.low) / (2 * error) == pytest.approx(1.96, abs=0.1)


@pytest.mark.parametrize("texts", [6, 12, 24])
def test_differences_of_equal_systems_are_clear_in_at_most_5_percent(texts: int) -> None:
    """Rare errors, many ties: the difference is -1, 0 or 1, and 2 % of the texts are lost. A bootstrap would find 10 to 15 %."""
    chance, clear = np.random.default_rng(texts), 0
    for _ in range(200):
        one, other = (chance.binomial(3, 0.2, texts) + 10.0 * (chance.random(texts) < 0.02) for _ in range(2))
        clear += interval_of_mean(one - other).is_clear
    assert clear <= 18, "10 of 200 by chance; more than 18 have a probability of 0.5 %"


def test_the_least_number_of_texts_has_an_interval_and_one_less_has_none() -> None:
    assert [least_texts(pairs) for pairs in (1, 6, 36)] == [6, 8, 11]
    for pairs in (1, 6, 36):
        for texts in (least_texts(pairs) - 1, least_texts(pairs)):
            found = interval_of_mean(np.arange(1.0, texts + 1), pairs)
            assert found.is_clear == (found.low is not None) == (texts == least_texts(pairs))


def test_comparisons_share_the_error() -> None:
    """The normal quantile at 1 - 0.05 / 2 / 36 is 3.20."""
    values = np.random.default_rng(2).normal(0.0, 1.0, 400)
    found = interval_of_mean(values, 36)
    assert found.high is not None
    assert (found.high - found.value) * 20 / values.std() == pytest.approx(3.2, abs=0.25)


def test_a_tie_by_rounding_is_no_difference() -> None:
    found = interval_of_mean(np.full(12, 1e-12))
    assert (found.low, found.high) == (0.0, 0.0) and not found.is_clear
