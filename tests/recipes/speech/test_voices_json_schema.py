"""`voices.json` of an export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.speech.voices_json_schema import VOICES, TrainedSpeaker, TrainedVoices, read_voices

STATE: dict[str, Any] = {
    "speakers": [{"name": "ann", "clips": 3, "seconds": 2.5}],
    "data": {"name": "me/train.jsonl", "sha256": "ab", "clips": 3},
    "base": {"name": "tiny", "revision": None},
}


def test_a_model_without_the_file_has_no_trained_voices(tmp_path: Path) -> None:
    assert read_voices(tmp_path) == {}
    (tmp_path / VOICES).write_text(json.dumps(STATE))
    assert read_voices(tmp_path) == STATE


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / VOICES).write_text("[]")
    with pytest.raises(UserError, match=r"voices.json must hold an object"):
        read_voices(tmp_path)


def test_an_incomplete_state_is_refused_by_its_key() -> None:
    model, place = TrainedVoices[TrainedSpeaker], Path("state.json")
    state = parse_recipe_state(model, STATE, place)
    assert state.as_json() == STATE and [*state.as_json()] == ["speakers", "data", "base"], "the order of voices.json"
    assert state.speakers[0].spoken_language is None
    for change, message in (
        ({"base": {"name": "tiny"}}, "base.revision"),
        ({"speakers": []}, "speakers"),
        ({"data": {**STATE["data"], "clips": -1}}, "data.clips"),
    ):
        with pytest.raises(UserError, match=f"recipe_state.{message}.*it was not written by this recipe"):
            parse_recipe_state(model, {**STATE, **change}, place)


def test_a_speaker_keeps_what_its_recipe_adds() -> None:
    assert TrainedSpeaker.model_validate({"name": "ann", "clips": 1, "seconds": 2.5, "row": 3}).model_dump()["row"] == 3
