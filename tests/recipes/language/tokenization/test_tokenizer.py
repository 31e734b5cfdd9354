"""Tests of `tokenizer`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.tokenizer import check_vocabulary, load_tokenizer
from tests.recipes.llm_sft import families


@pytest.fixture
def base(tmp_path: Path) -> Path:
    families.tokenizer("chatml").save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path / "base"


def test_a_given_template_replaces_the_one_of_the_base(base: Path, tmp_path: Path) -> None:
    other = families.template("qwen3")
    (tmp_path / "other.jinja").write_text(other)
    assert load_tokenizer(base, None).chat_template == families.template("chatml") != other
    assert load_tokenizer(base, tmp_path / "other.jinja").chat_template == other


def test_a_template_that_cannot_be_read_is_refused(base: Path, tmp_path: Path) -> None:
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    for name in ("none.jinja", "binary.jinja"):
        with pytest.raises(UserError, match=rf"options\.chat_template: .*{name} cannot be read"):
            load_tokenizer(base, tmp_path / name)


def test_a_tokenizer_without_a_fast_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"<unk>": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CTRLTokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UserError, match="no fast version"):
        load_tokenizer(tmp_path, None)


def test_added_tokens_count_for_the_size_of_the_embedding(base: Path) -> None:
    tokenizer = load_tokenizer(base, None)
    known = len(tokenizer)
    check_vocabulary(tokenizer, known, base)
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(UserError, match=f"has {known + 1:,} tokens and the model {known:,} embedding"):
        check_vocabulary(tokenizer, known, base)
