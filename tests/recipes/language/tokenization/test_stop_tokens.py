"""Tests of `stop_tokens`: generation stops at the token with which turns end in training."""

from __future__ import annotations

import copy

import pytest

from overtone.recipes.language.tokenization.stop_tokens import end_of_turn_id, find_stop_ids
from tests.recipes.llm_sft import families


@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_end_of_turn_is_found_in_every_family(family: str) -> None:
    tokenizer = families.tokenizer(family)
    assert end_of_turn_id(tokenizer) == tokenizer.convert_tokens_to_ids(families.FAMILIES[family].end)
    assert len(families.FAMILIES) >= 8


def test_without_a_template_or_a_certain_end_there_is_no_end_of_turn() -> None:
    bare = copy.deepcopy(families.tokenizer("chatml"))
    bare.chat_template = None
    assert end_of_turn_id(bare) is None and find_stop_ids(bare, 3) == [3, bare.eos_token_id]
    assert end_of_turn_id(families.tokenizer("chatml", "bad_unended")) is None


def test_configured_tokens_come_first_and_none_is_repeated() -> None:
    tokenizer = families.tokenizer("llama3")
    tokenizer_end = tokenizer.eos_token_id
    assert find_stop_ids(tokenizer, None) == [tokenizer_end]
    assert find_stop_ids(tokenizer, [7, tokenizer_end]) == [7, tokenizer_end]
    other = copy.deepcopy(families.tokenizer("chatml"))
    other.eos_token = "."
    end = other.convert_tokens_to_ids("<|im_end|>")
    assert find_stop_ids(other, 7) == [7, other.eos_token_id, end] and end != other.eos_token_id
