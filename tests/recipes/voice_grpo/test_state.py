"""What a run of voice_grpo stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.voice_grpo.state import VoicePolicyState


def test_an_invalid_state_is_refused() -> None:
    speaker = {"name": "anna", "clips": 1, "seconds": 1.0, "row": 2, "language": None}
    state = {"speakers": [speaker], "data": {"name": "pairs", "sha256": "0", "clips": 1}, "base": {"name": "export", "revision": None}}
    state |= {
        "texts": {"name": "texts", "sha256": "0", "texts": {"anna": 1}, "languages": ["auto"]},
        "objective": "ppo",
        "group": 2,
        "max_seconds": 1.0,
    }
    state |= {"clip_low": 0.2, "clip_high": 0.2, "kl_weight": 0.0, "rewards": {"pace": 1.0}, "judge": {"speaker_model_name": "resemblyzer"}}
    with pytest.raises(UserError, match=r"^run/state.json: recipe_state\.objective: "):
        parse_recipe_state(VoicePolicyState, state, Path("run/state.json"))
    found = parse_recipe_state(VoicePolicyState, {**state, "objective": "dapo"}, Path("run/state.json"))
    assert found.speakers[0].row == 2 and "Objective: dapo, groups of 2." in found.further_training
