"""Tests of `overtone.recipes.voice_grpo.verbs`."""

from __future__ import annotations

import pytest

from overtone.finetune.train import main as train


def test_without_data_the_form_of_a_text_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(["--recipe", "voice_grpo"]) == 2
    assert '{"text": "…", "speaker": "me"}' in capsys.readouterr().err
