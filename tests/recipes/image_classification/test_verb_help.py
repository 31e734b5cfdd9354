"""Tests of `overtone.recipes.image_classification.verb_help`."""

from __future__ import annotations

import pytest

from overtone.recipes.image_classification.verb_help import DATA, HELP


def test_the_options_are_printed_and_the_data_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    HELP["generate"]()
    assert "--image FILE" in capsys.readouterr().out and "overtone images" in DATA
