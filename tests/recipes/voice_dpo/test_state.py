"""What a run of voice_dpo stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.voice_dpo.state import VoicePreferenceState


def test_an_invalid_state_is_refused() -> None:
    speaker = {"name": "anna", "clips": 1, "seconds": 1.0, "row": 2, "language": None}
    state = {"speakers": [speaker], "data": {"name": "pairs", "sha256": "0", "clips": 1}, "base": {"name": "export", "revision": None}}
    state["preferences"] = {"name": "pairs", "sha256": "0", "pairs": {"anna": 1}}
    state |= {"objective": "sft", "beta": 0.1, "margin": 1.0, "label_smoothing": 0.0, "length_normalized": False}
    with pytest.raises(UserError, match=r"^run/state.json: recipe_state\.objective: "):
        parse_recipe_state(VoicePreferenceState, state, Path("run/state.json"))
    assert parse_recipe_state(VoicePreferenceState, {**state, "objective": "dpo"}, Path("run/state.json")).speakers[0].row == 2
