"""Tests of `overtone.recipes.llm_reward.options`."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.config import dump, resolve
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import find_recipe, load_options, load_recipe
from overtone.recipes.llm_reward.options import Options


def test_the_recipe_has_these_options(tmp_path: Path) -> None:
    folder = find_recipe("llm_reward")
    assert load_options(folder) is Options is load_recipe(folder).Options
    config = resolve("llm_reward", Options, [folder / "config.yaml"], [("options.objective", "classification")])
    (tmp_path / "config.yaml").write_text(dump(config))
    assert resolve("llm_reward", Options, [tmp_path / "config.yaml"], []) == config


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"objective": "regression"}, r"options\.objective"),
        ({"head": "old"}, r"options\.head"),
        ({"centering": "-1"}, r"options\.centering"),
        ({"objective": "classification", "centering": "0.1"}, "centering has no effect on classification, only on preference; remove it"),
        ({"loss_head": "liger"}, "liger computes probabilities of tokens, which this recipe does not need; use chunked"),
    ],
)
def test_mistakes_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        resolve("llm_reward", Options, [], [(f"options.{key}", value) for key, value in given.items()])
