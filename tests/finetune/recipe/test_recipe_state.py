"""Tests of `overtone.finetune.recipe.recipe_state`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import RecipeState, parse_recipe_state
from overtone.finetune.training import setup
from tests.finetune import tiny


class WithWidth(RecipeState):
    width: int


def test_a_state_is_read_strictly_and_keeps_unknown_keys() -> None:
    state = parse_recipe_state(WithWidth, {"width": 3, "later": [1]}, Path("state.json"))
    assert state.width == 3 and state.as_json() == {"width": 3, "later": [1]}
    for content, words in (
        ({}, "width: Field required"),
        ({"width": "3"}, "width: Input should be"),
        ([], "the whole of it"),
    ):
        with pytest.raises(UserError, match=f"^step/state.json: recipe_state.{words}.*it was not written by this recipe"):
            parse_recipe_state(WithWidth, content, Path("step/state.json"))


def test_a_recipe_that_could_not_read_its_state_again_is_refused_before_the_first_step(tmp_path: Path) -> None:
    config, other = tiny.config_in(tmp_path), replace(tiny.RECIPE, State=WithWidth)
    with pytest.raises(UserError, match="a state of the class ByteModelState, but its Recipe has State=WithWidth"):
        setup.load_shape(config, other)
