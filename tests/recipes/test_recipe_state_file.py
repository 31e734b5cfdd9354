"""The recipe state in the cache of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.image_classification.state import ClassifierState
from overtone.recipes.recipe_state_file import load_state, store_state


def test_the_cache_gives_back_the_state_or_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run/cache/recipe_state.json is missing or damaged; .* start the training again"):
        load_state(tmp_path / "run", ClassifierState)
    store_state(tmp_path / "run", ClassifierState(labels=["a", "b"]))
    assert load_state(tmp_path / "run", ClassifierState).labels == ["a", "b"]
    (tmp_path / "run" / "cache" / "recipe_state.json").write_text("{")
    with pytest.raises(UserError, match="missing or damaged"):
        load_state(tmp_path / "run", ClassifierState)
    (tmp_path / "run" / "cache" / "recipe_state.json").write_text('{"labels": ["a", 2]}')
    with pytest.raises(
        UserError, match=r"run/cache/recipe_state.json: labels.1: Input should be a valid string .*start the training again"
    ):
        load_state(tmp_path / "run", ClassifierState)
