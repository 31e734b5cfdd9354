"""Tests of `overtone.recipes.llm_grpo.verbs`."""

from __future__ import annotations

import pytest

from overtone.finetune.__main__ import main


def test_help_lists_the_options_of_generation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--recipe", "llm_grpo", "--help"]) == 0
    assert "--temperature" in capsys.readouterr().out


def test_without_data_the_form_of_a_row_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from overtone.finetune.train import main as train

    assert train(["--recipe", "llm_grpo"]) == 2
    assert '"answer": "42"}' in capsys.readouterr().err
