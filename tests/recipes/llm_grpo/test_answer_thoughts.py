"""Which part of an answer with thoughts is scored."""

from __future__ import annotations

import copy

import pytest
from tokenizers import AddedToken

from overtone.recipes.llm_grpo.answer_thoughts import has_thoughts, leave_out_thoughts, list_hidden_ids
from tests.recipes.llm_sft import families


@pytest.mark.parametrize(
    ("text", "prompt", "expected"),
    [
        ("<think>\na\n</think>\n\n42", "assistant\n", "42"),
        ("a\n</think>\n\n42", "assistant\n<think>\n", "42"),
        ("<think>a</think>b<think>c</think> 42", "assistant\n", "42"),
        ("42", "assistant\n", "42"),
        ("42", "assistant\n<think>\n\n</think>\n\n", "42"),
        (" <think> is a tag", "assistant\n", None),
        ("what is <think>?", "assistant\n", "what is <think>?"),
        ("still 42", "assistant\n<think>\n", None),
        ("<think>a</think>", "assistant\n", ""),
    ],
)
def test_what_follows_the_thoughts_is_left(text: str, prompt: str, expected: str | None) -> None:
    assert leave_out_thoughts(text, prompt) == expected


def test_only_some_templates_have_thoughts() -> None:
    assert has_thoughts(families.tokenizer("qwen3")) and not has_thoughts(families.tokenizer("chatml"))
    bare = copy.deepcopy(families.tokenizer("chatml"))
    bare.chat_template = None
    assert not has_thoughts(bare)


def test_tags_that_are_special_tokens_are_not_hidden() -> None:
    tokenizer = copy.deepcopy(families.tokenizer("chatml"))
    tokenizer.add_tokens([AddedToken("</think>", special=True)], special_tokens=True)
    hidden = list_hidden_ids(tokenizer)
    assert tokenizer.convert_tokens_to_ids("</think>") not in hidden
    assert {*tokenizer.convert_ids_to_tokens([*hidden])} == {"<|im_start|>", "<|im_end|>"}
