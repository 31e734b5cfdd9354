"""What a run of voice_clone stores: an invalid state is refused by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.qwen3_tts.state import VoiceCloneState

STORED: dict[str, Any] = {
    "speakers": [{"name": "abe", "clips": 2, "seconds": 30.0, "row": 1016, "language": None}],
    "data": {"name": "mine/train.jsonl", "sha256": "ab" * 32, "clips": 2},
    "base": {"name": "Qwen/Qwen3-TTS-12Hz-0.6B-Base", "revision": None},
}


def test_the_state_is_written_as_it_was_read() -> None:
    state = parse_recipe_state(VoiceCloneState, STORED, Path("state.json"))
    assert state.as_json() == STORED and state.speakers[0].row == 1016 and state.speakers[0].spoken_language is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speakers": None}, "recipe_state.speakers: Input should be a valid list"),
        ({"speakers": []}, "recipe_state.speakers: List should have at least 1 item"),
        ({"speakers": [{"name": "abe", "clips": 1, "seconds": 1.0, "language": None}]}, "recipe_state.speakers.0.row: Field required"),
        ({"speakers": [{**STORED["speakers"][0], "row": -1}]}, "recipe_state.speakers.0.row: Input should be greater than or equal to 0"),
        ({"base": "mine"}, "recipe_state.base: "),
    ],
)
def test_an_invalid_state_is_refused_by_its_key(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"run/state.json: {words}"):
        parse_recipe_state(VoiceCloneState, {**STORED, **changes}, Path("run/state.json"))
