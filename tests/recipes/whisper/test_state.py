"""What a run of whisper stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.whisper.state import WhisperState


def test_language_and_task_are_checked() -> None:
    assert parse_recipe_state(WhisperState, {"language": None, "task": "transcribe"}, Path("state.json")).language is None
    with pytest.raises(UserError, match=r"^run/state.json: recipe_state.language"):
        parse_recipe_state(WhisperState, {"language": 3, "task": "transcribe"}, Path("run/state.json"))
