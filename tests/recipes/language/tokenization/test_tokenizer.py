"""Tests of `tokenizer`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import JsonValue
from tokenizers import Tokenizer, pre_tokenizers, trainers
from transformers import AutoTokenizer

from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.tokenizer import check_vocabulary, load_tokenizer, name_whole_class
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


@pytest.mark.parametrize("named", ["GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizer", "PreTrainedTokenizerFast"])
def test_tokens_are_those_of_tokenizer_json_whatever_class_is_named(base: Path, named: str) -> None:
    """As SmolLM2 is published: transformers 5 would give the class its own pre-tokenizer, and numbers would be whole."""
    raw = Tokenizer.from_file(str(base / "tokenizer.json"))
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    raw.train_from_iterator(["2024 2024 2024 it is 2024"] * 9, trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    raw.model.ignore_merges = True
    raw.save(str(base / "tokenizer.json"))
    settings: dict[str, JsonValue] = {"eos_token": "<|im_end|>", "tokenizer_class": named}
    (base / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(base, None)
    tokens = tokenizer("it is 2024").tokens()
    assert tokens == raw.encode("it is 2024").tokens and tokens[-4:] == ["2", "0", "2", "4"]
    assert tokenizer.backend_tokenizer.model.ignore_merges and tokenizer.eos_token == "<|im_end|>"
    (base / "tokenizer_config.json").write_text(json.dumps(name_whole_class(base, settings)))
    stock = AutoTokenizer.from_pretrained(base)
    assert stock("it is 2024").tokens() == tokens and stock.eos_token == "<|im_end|>"


def test_a_class_that_takes_all_of_tokenizer_json_keeps_its_name(base: Path) -> None:
    assert name_whole_class(base, {"tokenizer_class": "Qwen2Tokenizer"}) == {"tokenizer_class": "Qwen2Tokenizer"}


def test_added_tokens_count_for_the_size_of_the_embedding(base: Path) -> None:
    tokenizer = load_tokenizer(base, None)
    known = len(tokenizer)
    check_vocabulary(tokenizer, known, base)
    tokenizer.add_tokens(["<new>"])
    with pytest.raises(UserError, match=f"has {known + 1:,} tokens and the model {known:,} embedding"):
        check_vocabulary(tokenizer, known, base)
