"""Tests of `overtone.recipes.voice_dpo.verbs`."""

from __future__ import annotations

import pytest

from overtone.finetune.train import main as train


def test_without_data_the_way_to_pairs_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(["--recipe", "voice_dpo"]) == 2
    assert "overtone pairs exports/me --texts lines.txt" in capsys.readouterr().err
