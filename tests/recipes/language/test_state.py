"""What a run on chats stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.language.state import ChatState


@pytest.mark.parametrize("state", [{}, {"chat_template": 3}])
def test_an_invalid_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^run/state.json: recipe_state\.chat_template: "):
        parse_recipe_state(ChatState, state, Path("run/state.json"))
    assert parse_recipe_state(ChatState, {"chat_template": None}, Path("run/state.json")).chat_template is None
