"""What a run of csm stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.csm.state import CsmState

STORED: dict[str, Any] = {
    "speakers": [{"name": "ann", "clips": 12, "seconds": 90.0, "id": 3}],
    "data": {"name": "me/train.jsonl", "sha256": "ab" * 32, "clips": 12},
    "base": {"name": "sesame/csm-1b", "revision": "abc"},
}
CONTEXT = {"turns": 2, "loss": "last", "clips": 5, "seconds": 3.5}


@pytest.mark.parametrize("stored", [STORED, {**STORED, "context": CONTEXT}], ids=["without", "with"])
def test_the_state_is_written_as_it_was_read_with_and_without_context(stored: dict[str, Any]) -> None:
    state = parse_recipe_state(CsmState, stored, Path("state.json"))
    assert state.as_json() == stored and state.numbers() == {"ann": 3}


@pytest.mark.parametrize("broken", [{}, {"speakers": []}, {"speakers": [{"name": "a", "id": -1}]}], ids=["empty", "nobody", "negative"])
def test_a_state_of_another_recipe_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^run/state.json: recipe_state.speakers.*it was not written by this recipe"):
        parse_recipe_state(CsmState, broken, Path("run/state.json"))
