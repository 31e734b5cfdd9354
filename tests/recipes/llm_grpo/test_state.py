"""What a run of llm_grpo stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.llm_grpo.state import PolicyState

STATE = {
    **{"chat_template": None, "objective": "grpo", "group": 8, "max_new_tokens": 16, "clip_low": 0.2, "clip_high": 0.2, "kl_weight": 0.0},
    "dynamic_sampling": 0,
    "weights": {"exact_match": 1.0},
    "on_failure": "leave_out",
    "rewards": {"exact_match": "44136fa355b3678a"},
}


def test_a_state_is_read_back() -> None:
    assert parse_recipe_state(PolicyState, STATE, Path("state.json")).as_json() == STATE


def test_an_invalid_state_is_refused() -> None:
    with pytest.raises(UserError, match=r"^run/state.json: recipe_state\.objective: "):
        parse_recipe_state(PolicyState, {**STATE, "objective": "ppo"}, Path("run/state.json"))
