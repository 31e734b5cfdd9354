"""Tests of `overtone.recipes.llm_reward.verbs`."""

from __future__ import annotations

import pytest

from overtone.finetune.__main__ import main


def test_help_lists_the_options_of_scoring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--recipe", "llm_reward", "--help"]) == 0
    assert "--rows FILE" in capsys.readouterr().out


def test_without_data_the_forms_of_rows_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from overtone.finetune.train import main as train

    assert train(["--recipe", "llm_reward"]) == 2
    printed = capsys.readouterr().err
    assert '{"prompt": "…", "chosen": "…", "rejected": "…"}' in printed and '{"text": "…", "label": "…"}' in printed
