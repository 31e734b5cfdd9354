"""Arguments of `eval-voice`: options of protocols."""

from __future__ import annotations

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.cli.evaluation_arguments import parse


def test_options_of_a_protocol_need_one() -> None:
    assert parse(["--data", "x.jsonl"]).protocol is None
    with pytest.raises(UserError, match="--protocol-similarity is an option of a protocol; add --protocol seed-tts-eval"):
        parse(["--data", "x.jsonl", "--protocol-similarity", "x.pth"])
