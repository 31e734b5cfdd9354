"""What a run of llm_sft stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.llm_sft.state import SftState


@pytest.mark.parametrize("state", [{}, {"supervise": "all", "chat_template": None}, {"supervise": "last", "chat_template": 3}])
def test_an_invalid_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^run/state.json: recipe_state\.(supervise|chat_template): "):
        parse_recipe_state(SftState, state, Path("run/state.json"))
