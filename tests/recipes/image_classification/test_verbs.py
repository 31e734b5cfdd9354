"""Tests of `overtone.recipes.image_classification.verbs`."""

from __future__ import annotations

import pytest

from overtone.recipes.image_classification.verbs import DATA, INFERENCE


def test_the_options_are_printed_and_the_data_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    INFERENCE.help["generate"]()
    assert "--image FILE" in capsys.readouterr().out and "overtone images" in DATA.advice
