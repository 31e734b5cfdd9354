"""Tests of `overtone.finetune.cli.pairs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune import __main__ as verbs


def test_the_model_may_come_first_or_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words in ([str(tmp_path)], ["--model", str(tmp_path)]):
        assert verbs.main(["pairs", *words, "--recipe", "llm_sft"]) == 2
        assert f"{tmp_path}: no recipe learns from pairs of clips of llm_sft" in capsys.readouterr().err


def test_without_a_model_it_is_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs.main(["pairs"]) == 2
    assert "--model" in capsys.readouterr().err


def test_a_folder_without_a_model_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert verbs.main(["pairs", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_two_models_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert verbs.main(["pairs", str(tmp_path), "--model", "other"]) == 2
    assert f"2 models, {tmp_path}, other: pairs are clips of one model" in capsys.readouterr().err
