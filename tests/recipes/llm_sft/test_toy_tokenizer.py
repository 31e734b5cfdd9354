"""Tests of `overtone.recipes.llm_sft.toy_tokenizer` and of the tokenizer in the package."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from overtone.finetune.errors import UserError
from overtone.recipes.language.tokenization.sft_tokenization import check_template
from overtone.recipes.llm_sft import toy_chats, toy_tokenizer
from overtone.recipes.llm_sft.model import tiny_checkpoint


def test_the_command_makes_the_files_in_the_package(tmp_path: Path) -> None:
    assert toy_tokenizer.main([str(tmp_path / "made")]) == 0
    shipped = {path.name: path.read_bytes() for path in tiny_checkpoint.TOKENIZER.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()} == shipped and len(shipped) == 3
    with pytest.raises(UserError, match="usage: "):
        toy_tokenizer.main([])


def test_texts_are_restored_and_words_are_one_token() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint.TOKENIZER)
    for text in ("Grüße, 世界! 🙂\n\t\x00", "Reverse KQAD", "user assistant system"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert {len(tokenizer(word)["input_ids"]) for word in toy_tokenizer.WORDS} == {1}
    assert tokenizer.tokenize("B-A " + toy_chats.LETTERS) == ["B", "-", "A", "Ġ", *toy_chats.LETTERS]


def test_the_template_marks_the_text_of_the_assistant() -> None:
    assert "{% generation %}" in check_template(AutoTokenizer.from_pretrained(tiny_checkpoint.TOKENIZER))
