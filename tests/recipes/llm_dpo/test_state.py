"""What a run of llm_dpo stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.llm_dpo.state import PreferenceState


def test_an_invalid_state_is_refused() -> None:
    state = {"chat_template": None, "objective": "sft", "beta": 0.1, "margin": 1.0, "label_smoothing": 0.0, "length_normalized": False}
    state |= {"desirable_weight": 1.0, "undesirable_weight": 1.0}
    with pytest.raises(UserError, match=r"^run/state.json: recipe_state\.objective: "):
        parse_recipe_state(PreferenceState, state, Path("run/state.json"))
