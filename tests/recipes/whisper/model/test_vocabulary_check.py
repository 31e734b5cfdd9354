"""A base whose tokens have other numbers than Whisper's is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.whisper.model.vocabulary_check import check_vocabulary, list_tokens
from tests.recipes.whisper.tiny_whisper import ENGLISH, PROCESSOR


def test_the_released_vocabulary_passes_and_another_one_does_not(base: Path, tmp_path: Path) -> None:
    check_vocabulary(base, PROCESSOR)
    check_vocabulary(tmp_path, PROCESSOR)
    with pytest.raises(UserError, match=r"tokenizer.json: .* tokens have other numbers than in Whisper"):
        check_vocabulary(base, ENGLISH)
    tokens = list_tokens(PROCESSOR)
    tokens["Ġthe"], tokens["Ġand"] = tokens["Ġand"], tokens["Ġthe"]
    (tmp_path / "vocab.json").write_text(json.dumps(tokens))
    with pytest.raises(UserError, match=r"vocab.json: 2 tokens have other numbers than in Whisper \('Ġthe' is \d+, expected \d+\)"):
        check_vocabulary(tmp_path, PROCESSOR)


@pytest.mark.parametrize("content", [{}, {"model": []}, {"model": {"vocab": 3}}])
def test_a_tokenizer_without_a_vocabulary_is_refused(tmp_path: Path, content: object) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"tokenizer.json has no vocabulary"):
        check_vocabulary(tmp_path, PROCESSOR)
