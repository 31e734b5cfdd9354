"""Tests of `overtone.recipes.whisper.verbs`."""

from __future__ import annotations

import pytest

from overtone.recipes.whisper.verbs import DATA, INFERENCE


def test_the_options_are_printed_and_the_data_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    INFERENCE.help["generate"]()
    INFERENCE.help["serve"]()
    printed = capsys.readouterr().out
    assert "--audio FILE" in printed and "--max-seconds" in printed and "overtone voice" in DATA.advice
