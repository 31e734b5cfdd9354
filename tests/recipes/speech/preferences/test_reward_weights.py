"""Tests of `overtone.recipes.speech.preferences.reward_weights`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from overtone.recipes.speech.preferences.reward_weights import RewardWeights


def test_a_reward_needs_a_score() -> None:
    assert RewardWeights(intelligibility=0.0).similarity == 0.5
    with pytest.raises(ValidationError, match="silence would be the best speech"):
        RewardWeights(intelligibility=0.0, similarity=0.0)


@pytest.mark.parametrize("name", [*RewardWeights.model_fields])
def test_a_weight_is_not_negative(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        RewardWeights(**{name: -1.0})
