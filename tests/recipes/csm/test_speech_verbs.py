"""Tests of `overtone.recipes.csm.speech_verbs`."""

from __future__ import annotations

from overtone.recipes.csm.recipe import RECIPE
from overtone.recipes.csm.speech_registration import COMMAND
from overtone.recipes.csm.speech_verbs import VERBS


def test_the_verbs_are_those_of_the_recipe() -> None:
    assert VERBS.load_command() is COMMAND
    assert (RECIPE.inference.generate, RECIPE.inference.serve) == (VERBS.generate, VERBS.serve)
