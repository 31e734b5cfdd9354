"""Tests of `overtone.recipes.llm_sft.verbs`."""

from __future__ import annotations

import pytest

from overtone.finetune.__main__ import main
from overtone.recipes.llm_sft.verbs import INFERENCE


@pytest.mark.parametrize("verb", sorted(INFERENCE.help))
def test_help_lists_them_without_a_model(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert {*INFERENCE.help} == {"generate", "chat", "serve", "ray-serve"}
    for more in ([], ["--recipe", "llm_sft"]):
        assert main([verb, *more, "--help"]) == 0
        printed = capsys.readouterr().out
        assert "options of the recipe llm_sft:" in printed and "example: " in printed
        assert ("--context" if verb in ("serve", "ray-serve") else "--temperature") in printed
