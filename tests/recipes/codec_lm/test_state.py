"""What a run of codec_lm stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.codec_lm.state import CodecLmState
from tests.recipes.codec_lm import tiny_models

STORED: dict[str, Any] = {
    "speakers": [{"name": "ann", "clips": 2, "seconds": 60.0, "language": "english"}],
    "data": {"name": "me/train.jsonl", "sha256": "ab" * 32, "clips": 2},
    "base": {"name": "canopylabs/orpheus-3b-0.1-pretrained", "revision": None},
    "family": tiny_models.FAMILY.model_dump(),
    "supervise": "speech",
    "codec": {"source": None, "digest": "cd" * 32},
}


def test_the_state_is_written_as_it_was_read() -> None:
    state = parse_recipe_state(CodecLmState, STORED, Path("state.json"))
    assert state.as_json() == STORED and state.family == tiny_models.FAMILY and state.speakers[0].spoken_language == "english"


@pytest.mark.parametrize("missing", ["codec", "family", "supervise", "speakers"])
def test_a_state_without_a_key_is_refused_by_its_name(missing: str) -> None:
    with pytest.raises(UserError, match=f"^run/state.json: recipe_state.{missing}: Field required"):
        parse_recipe_state(CodecLmState, {name: value for name, value in STORED.items() if name != missing}, Path("run/state.json"))
