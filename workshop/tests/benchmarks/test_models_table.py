"""The table of models has a row for each released model of every recipe, and says what is computed from its shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import ReleasedModel, built_in_recipes
from tests.launch.launching import ROOT
from workshop.benchmarks import models_table
from workshop.benchmarks._pages import HEAD_OF_MODELS
from workshop.benchmarks._regressions import rows_of
from workshop.benchmarks._released import estimate_model, released_models

FOUND = released_models()
ROWS = {row["model"]: row for row in rows_of(ROOT / "workshop" / "benchmarks" / "results" / "models_table.md")}
ADVICE = "run workshop/benchmarks/models_table.py, then workshop/benchmarks/_pages.py"


def row_of(recipe: str, model: ReleasedModel) -> dict[str, str]:
    return ROWS[models_table.describe_model(recipe, model)["model"]]


def test_every_recipe_has_rows_and_each_row_is_what_its_folder_says() -> None:
    others = {recipe for recipe in built_in_recipes() if f"`{recipe}`" in HEAD_OF_MODELS.split("train the models of")[0]}
    assert {recipe for recipe, _ in FOUND} == set(built_in_recipes()) - others, "each other recipe has a released_models.py"
    assert len({model.name for _, model in FOUND}) == len(FOUND)
    assert list(ROWS) == [models_table.describe_model(recipe, model)["model"] for recipe, model in FOUND], ADVICE
    for recipe, model in FOUND:
        described = models_table.describe_model(recipe, model)
        assert described.items() <= row_of(recipe, model).items(), ADVICE
        assert model.name.count("/") == 1 and model.licence and model.languages


def test_the_estimate_is_of_the_released_shape() -> None:
    recipe, model = next((recipe, model) for recipe, model in FOUND if model.name == "Qwen/Qwen3-0.6B")
    whole = estimate_model(recipe, model)
    assert f"{whole.outline.total:,}" == row_of(recipe, model)["parameters"] == "596,049,920"
    assert models_table.format_memory(whole) == row_of(recipe, model)["full, GiB"], ADVICE
    assert models_table.mark(whole.work.refuses_tensor(2) is None) == row_of(recipe, model)["tensor parallel"] == "yes"
    narrow = replace(model, config={**model.config, "num_key_value_heads": 1})
    assert estimate_model(recipe, narrow).work.refuses_tensor(2) is not None


def test_a_way_that_is_not_possible_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UserError("no")

    monkeypatch.setattr(models_table, "estimate_model", refuse)
    assert models_table.format_memory(models_table.estimate_way(*FOUND[0], "QLoRA")) == "–"
    with pytest.raises(UserError):
        models_table.estimate_way(*FOUND[0], "full")


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "model"), FOUND, ids=[model.name for _, model in FOUND])
def test_every_row_is_computed_again(recipe: str, model: ReleasedModel) -> None:
    assert models_table.make_row(recipe, model) == row_of(recipe, model), ADVICE


def test_the_page_is_linked_from_the_page_on_recipes() -> None:
    assert "(models.md)" in Path(ROOT / "docs" / "add_a_recipe.md").read_text(encoding="utf-8")
