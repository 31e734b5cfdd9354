"""The recipe state in the cache of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.recipes.image_classification.options import Options
from overtone.recipes.recipe_state_file import load_state, store_state


def test_the_cache_gives_back_the_state_or_names_its_file(tmp_path: Path) -> None:
    config = resolve("image_classification", Options, [], [("run.dir", json.dumps(str(tmp_path / "run")))])
    with pytest.raises(UserError, match=r"run/cache/recipe_state.json is missing or damaged; .* start the training again"):
        load_state(config)
    store_state(config, {"labels": ["a", "b"]})
    assert load_state(config) == {"labels": ["a", "b"]}
    (tmp_path / "run" / "cache" / "recipe_state.json").write_text("{")
    with pytest.raises(UserError, match="missing or damaged"):
        load_state(config)
