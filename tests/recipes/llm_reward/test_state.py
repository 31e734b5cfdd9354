"""Tests of `overtone.recipes.llm_reward.state`."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.llm_reward.state import RewardState

STATE = {"chat_template": None, "objective": "preference", "centering": 0.0, "labels": []}


def test_the_number_of_outputs_follows_from_the_labels() -> None:
    assert parse_recipe_state(RewardState, STATE, Path("state.json")).outputs == 1
    assert parse_recipe_state(RewardState, {**STATE, "labels": ["a", "b", "c"]}, Path("state.json")).outputs == 3


def test_an_invalid_state_is_refused() -> None:
    with pytest.raises(UserError, match=r"^run/state.json: recipe_state\.objective: "):
        parse_recipe_state(RewardState, {**STATE, "objective": "dpo"}, Path("run/state.json"))
