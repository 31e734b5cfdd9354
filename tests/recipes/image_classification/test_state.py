"""What a run of image_classification stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import parse_recipe_state
from overtone.recipes.image_classification.state import ClassifierState


def test_the_labels_are_checked() -> None:
    assert parse_recipe_state(ClassifierState, {"labels": ["cat", "dog"]}, Path("state.json")).labels == ["cat", "dog"]
    for labels in ("cat", ["cat"], ["cat", 2], None):
        with pytest.raises(UserError, match=r"^run/state.json: recipe_state.labels"):
            parse_recipe_state(ClassifierState, {"labels": labels}, Path("run/state.json"))
