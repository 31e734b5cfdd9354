"""Tests of `overtone.recipes.llm_dpo.options`."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.config import dump, resolve
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import find_recipe, load_options, load_recipe
from overtone.recipes.llm_dpo.options import Options


def test_the_recipe_has_these_options() -> None:
    folder = find_recipe("llm_dpo")
    assert load_options(folder) is Options is load_recipe(folder).Options


def test_beta_has_the_default_of_the_objective() -> None:
    assert Options().strength == 0.1 and Options(objective="simpo").strength == 2.0
    assert Options(objective="simpo", beta=2.5).strength == 2.5


@pytest.mark.parametrize("objective", Options.model_fields["objective"].annotation.__args__)  # type: ignore[union-attr]
def test_the_config_of_a_checkpoint_is_a_valid_config(tmp_path: Path, objective: str) -> None:
    config = resolve("llm_dpo", Options, [], [("options.objective", objective)])
    (tmp_path / "config.yaml").write_text(dump(config))
    assert resolve("llm_dpo", Options, [tmp_path / "config.yaml"], []) == config


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"objective": "sft"}, r"options\.objective"),
        ({"beta": "0"}, r"options\.beta"),
        ({"label_smoothing": "0.5"}, r"options\.label_smoothing"),
        ({"reference": "copy"}, r"options\.reference"),
        ({"objective": "orpo", "reference": "cached"}, "reference has no effect on orpo, only on dpo and ipo and kto; remove it"),
        ({"margin": "2"}, "margin has no effect on dpo, only on simpo; remove it"),
        ({"objective": "orpo", "length_normalized": "true"}, "length_normalized has no effect on orpo, only on dpo and ipo"),
        ({"objective": "ipo", "label_smoothing": "0.1"}, "label_smoothing has no effect on ipo"),
        ({"desirable_weight": "2"}, "desirable_weight has no effect on dpo, only on kto; remove it"),
        ({"objective": "kto", "length_normalized": "true"}, "length_normalized has no effect on kto"),
        ({"loss_head": "liger"}, "liger computes no log-probability of each token; use chunked"),
    ],
)
def test_values_that_have_no_effect_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        resolve("llm_dpo", Options, [], [(f"options.{key}", value) for key, value in given.items()])
