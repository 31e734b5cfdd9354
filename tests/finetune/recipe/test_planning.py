"""Tests of `overtone.finetune.recipe.planning`."""

from __future__ import annotations

from overtone.finetune.recipe import built_in_recipes, find_recipe, load_released_models


def test_the_released_models_of_all_recipes_are_named_with_owner_licence_and_shape() -> None:
    models = [model for name in built_in_recipes() for model in load_released_models(find_recipe(name))]
    assert len(models) >= 10 and len({model.name for model in models}) == len(models)
    assert [model.name for model in models if model.name.count("/") != 1 or not model.licence or not model.config] == []
