"""Tests of `recipes.csm.speech_verbs`."""

from __future__ import annotations

from recipes.csm.recipe import RECIPE
from recipes.csm.speech_registration import COMMAND
from recipes.csm.speech_verbs import VERBS


def test_the_verbs_are_those_of_the_recipe() -> None:
    assert VERBS.load_command() is COMMAND
    assert (RECIPE.inference.generate, RECIPE.inference.serve) == (VERBS.generate, VERBS.serve)
