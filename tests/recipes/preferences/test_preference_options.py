"""Tests of `overtone.recipes.preferences.preference_options`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from overtone.recipes.preferences.preference_options import DEFAULT_BETA, USERS, Objective, PreferenceOptions

OTHER_VALUES = {"reference": "cached", "margin": 2.0, "label_smoothing": 0.1, "length_normalized": True}


@pytest.mark.parametrize("objective", [*DEFAULT_BETA])
@pytest.mark.parametrize("name", [*OTHER_VALUES])
def test_an_option_without_effect_is_refused(objective: Objective, name: str) -> None:
    if objective in USERS[name]:
        assert getattr(PreferenceOptions(objective=objective, **{name: OTHER_VALUES[name]}), name) == OTHER_VALUES[name]
        return
    with pytest.raises(ValidationError, match=f"{name} has no effect on {objective}"):
        PreferenceOptions(objective=objective, **{name: OTHER_VALUES[name]})


def test_the_strength_depends_on_the_objective() -> None:
    assert PreferenceOptions(objective="simpo").strength == 2.0 and PreferenceOptions(beta=0.3).strength == 0.3
