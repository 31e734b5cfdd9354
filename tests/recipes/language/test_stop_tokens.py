"""A model stops where it was taught to stop."""

from __future__ import annotations

import copy

import pytest

from recipes.language.stop_tokens import end_of_turn, stop_ids
from tests.recipes.llm_sft import families


@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_token_that_closes_a_turn(family: str) -> None:
    tokenizer = families.tokenizer(family)
    assert end_of_turn(tokenizer) == tokenizer.convert_tokens_to_ids(families.FAMILIES[family].end)
    assert len(families.FAMILIES) >= 8


def test_without_a_template_or_a_sure_end_there_is_none() -> None:
    bare = copy.deepcopy(families.tokenizer("chatml"))
    bare.chat_template = None
    assert end_of_turn(bare) is None and stop_ids(bare, 3) == [3, bare.eos_token_id]
    assert end_of_turn(families.tokenizer("chatml", "bad_unended")) is None


def test_what_the_base_names_comes_first_and_nothing_twice() -> None:
    tokenizer = families.tokenizer("llama3")
    tokenizer_end = tokenizer.eos_token_id
    assert stop_ids(tokenizer, None) == [tokenizer_end]
    assert stop_ids(tokenizer, [7, tokenizer_end]) == [7, tokenizer_end]
    other = copy.deepcopy(families.tokenizer("chatml"))
    other.eos_token = "."
    end = other.convert_tokens_to_ids("<|im_end|>")
    assert stop_ids(other, 7) == [7, other.eos_token_id, end] and end != other.eos_token_id
