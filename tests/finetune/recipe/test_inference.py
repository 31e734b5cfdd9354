"""Tests of `overtone.finetune.recipe.inference`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from overtone.finetune.recipe import Inference


def test_a_recipe_offers_only_the_verbs_that_it_gives() -> None:
    inference = Inference(generate=lambda _, __: 7)
    assert inference.generate(Path(), []) == 7
    given = {field.name for field in fields(Inference) if getattr(inference, field.name)}
    assert given == {"generate"}
