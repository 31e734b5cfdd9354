"""The help of verbs lists their options without a model."""

from __future__ import annotations

import pytest

from overtone.finetune.__main__ import main
from overtone.recipes.csm.verbs import INFERENCE


@pytest.mark.parametrize(
    ("verb", "option"), [("generate", "--depth-decoder-temperature"), ("serve", "--token-file"), ("eval-voice", "--speaker-model")]
)
def test_help_of_the_recipe_needs_no_model(verb: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--recipe", "csm", "--help"]) == 0
    assert option in capsys.readouterr().out
    if verb in INFERENCE.help:
        with pytest.raises(SystemExit):
            INFERENCE.help[verb]()
        assert option in capsys.readouterr().out
