"""The help of verbs lists their options without a model."""

from __future__ import annotations

import pytest

from overtone.finetune.__main__ import main
from overtone.recipes.voice_clone.verbs import INFERENCE


@pytest.mark.parametrize(("verb", "option"), [("generate", "--streamed-text"), ("serve", "--token-file")])
def test_each_verb_prints_its_options(verb: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        INFERENCE.help[verb]()
    assert option in capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "option"), [("generate", "--streamed-text"), ("serve", "--token-file"), ("eval-voice", "--speaker-model")]
)
def test_help_of_a_recipe_needs_no_model(verb: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--recipe", "voice_clone", "--help"]) == 0
    assert option in capsys.readouterr().out
    assert main([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    assert (option in printed) == (verb in INFERENCE.help) and f"overtone {verb} --recipe NAME --help" in printed


def test_a_verb_that_the_recipe_lacks_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--recipe", "voice_clone", "--help"]) == 2
    assert "--recipe voice_clone: this recipe has no `chat`" in capsys.readouterr().err
