"""Tests of `overtone.recipes.language.preferences.preference_tokenization`: each form of a pair, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.language.preferences.preference_tokenization import (
    LABELLED,
    PAIR,
    list_unused_parts,
    tokenize_labelled,
    tokenize_pair,
)
from tests.recipes.llm_sft import families

GREETING = {"role": "user", "content": "Good day."}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("And to you.", "No."))
CALL = {"role": "assistant", "content": "Look."}
TEXTS = {"prompt": "Good day. ", "chosen": "And to you.", "rejected": "No."}
EXPLICIT = {"prompt": [GREETING], "chosen": [GOOD], "rejected": [BAD]}
CHATS = {"chosen": [GREETING, GOOD], "rejected": [GREETING, BAD]}
ULTRAFEEDBACK = {**CHATS, "prompt": "Good day.", "score_chosen": 8.0, "prompt_id": "7"}


def read(row: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(both sides as text, their answers as text)"""
    tokenizer = families.tokenizer("chatml")
    sides = tokenize_pair(row, tokenizer, ())
    answers = [[number for number, learned in zip(*side, strict=True) if learned] for side in sides]
    return [tokenizer.decode(side[0]) for side in sides], [tokenizer.decode(answer) for answer in answers]


@pytest.mark.parametrize("row", [EXPLICIT, CHATS, ULTRAFEEDBACK], ids=["explicit", "chats", "ultrafeedback"])
def test_chats_are_rendered_and_only_the_answers_are_scored(row: dict[str, Any]) -> None:
    start = "<|im_start|>user\nGood day.<|im_end|>\n<|im_start|>assistant\n"
    texts, answers = read(row)
    assert answers == ["And to you.<|im_end|>", "No.<|im_end|>"]
    assert [text.strip() for text in texts] == [start + answer for answer in answers]


def test_plain_texts_are_no_chats() -> None:
    texts, answers = read(TEXTS)
    assert [text.split("<")[0] for text in texts] == ["Good day. And to you.", "Good day. No."]
    assert [answer.split("<")[0] for answer in answers] == ["And to you.", "No."]


def test_an_earlier_answer_that_both_sides_share_is_part_of_the_prompt() -> None:
    again = {"role": "user", "content": "Who are you?"}
    row = {
        side: [GREETING, GOOD, again, {"role": "assistant", "content": last}] for side, last in (("chosen", "Yes."), ("rejected", "No."))
    }
    assert read(row)[1] == ["Yes.<|im_end|>", "No.<|im_end|>"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"chosen": "And to you."}, "has no 'rejected'"),
        ({**TEXTS, "prompt": [GREETING]}, "prompt must be a text, too"),
        ({**EXPLICIT, "chosen": "And to you."}, "must both be texts, or both lists of messages"),
        ({**EXPLICIT, "chosen": []}, "chosen has no messages; write the answer, or remove the row"),
        ({**TEXTS, "rejected": ""}, "rejected is an empty text; write the answer, or remove the row"),
        ({**EXPLICIT, "rejected": [GOOD]}, "chosen and rejected have the same tokens, so the pair has no preference"),
        ({**TEXTS, "rejected": "And to you."}, "chosen and rejected have the same tokens"),
        ({"chosen": [GREETING, GOOD], "rejected": [GREETING, GOOD]}, "are the same, so the pair has no preference"),
        ({"chosen": [GREETING, GOOD], "rejected": [{**GREETING, "content": "Hello."}, BAD]}, "the same messages up to an answer"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "the same messages up to an answer"),
        ({**TEXTS, "prompt": ""}, "prompt must be a text, too, and not empty"),
        ({**EXPLICIT, "prompt": []}, "prompt has no messages"),
        ({**CHATS, "prompt": [GREETING]}, "repeat the messages of prompt; remove prompt"),
        ({**CHATS, "rejected": [GREETING]}, "is the beginning of the other, so it has no answer"),
        (
            {side: [GREETING, CALL, {"role": "tool", "content": result}, GOOD] for side, result in (("chosen", "1"), ("rejected", "2"))},
            "the same messages up to an answer of the assistant",
        ),
        ({**CHATS, "prompt": "Who are you?"}, "prompt is not a question at the beginning of both chats"),
        ({**EXPLICIT, "chosen": [{"role": "user", "content": "Hm."}]}, "chosen: nothing is supervised in this row"),
        ({**EXPLICIT, "rejected": [{"role": "assistant"}]}, r"rejected: messages\[1\]\.content is missing"),
    ],
)
def test_a_row_that_is_no_pair_is_refused(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read(row)


def test_a_difference_that_the_template_drops_is_no_preference() -> None:
    """Of reasoning that the template ignores, the row is refused before its sides are compared."""
    row = {**EXPLICIT, "rejected": [{**GOOD, "reasoning_content": "Hm."}]}
    with pytest.raises(UserError, match="rejected: the chat template ignores"):
        read(row)
    with pytest.raises(UserError, match="have the same tokens"):
        tokenize_pair(row, families.tokenizer("chatml"), ["reasoning_content"])


def test_keys_of_messages_that_the_template_does_not_name_are_counted() -> None:
    row = {**EXPLICIT, "rejected": [{**BAD, "score": 3}]}
    assert list_unused_parts(row, families.tokenizer("chatml"), (), PAIR) == ["key score of messages"]


def test_keys_of_a_row_that_are_not_read_are_counted() -> None:
    tokenizer, written = families.tokenizer("chatml"), {"source": "a.jsonl:1", "tools": [], "margin": None}
    assert list_unused_parts({**EXPLICIT, **written}, tokenizer, (), PAIR) == []
    row = {**EXPLICIT, "system": "Be brief.", "label": True, "margin": 0}
    assert list_unused_parts(row, tokenizer, (), PAIR) == ["key system", "key label", "key margin"]
    assert list_unused_parts(row, tokenizer, (), (*PAIR, "margin")) == ["key system", "key label"]
    both = {"prompt": "Good day. ", "completion": "Yes.", "label": True, "chosen": "No."}
    assert list_unused_parts(both, tokenizer, (), LABELLED) == ["key chosen"]


@pytest.mark.parametrize("row", [{"prompt": [GREETING], "completion": [GOOD]}, {"prompt": "Good day. ", "completion": "And to you."}])
def test_a_labelled_answer_is_read(row: dict[str, Any]) -> None:
    tokenizer = families.tokenizer("chatml")
    (ids, mask), label = tokenize_labelled({**row, "label": False}, tokenizer, ())
    assert (
        not label and tokenizer.decode([token for token, learned in zip(ids, mask, strict=True) if learned]).split("<")[0] == "And to you."
    )
    assert list_unused_parts({**row, "label": False}, tokenizer, (), LABELLED) == []


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "Good day. ", "completion": "And to you."}, "has no 'label'; a row needs 'prompt', 'completion' and 'label'"),
        (EXPLICIT, "has no 'completion' and no 'label'.*; a pair of answers has two labels, so it is two such rows"),
        ({"prompt": "Good day. ", "completion": "Yes.", "label": 1}, r"label must be true \(a good answer\) or false, found 1"),
    ],
)
def test_a_row_without_a_label_is_refused(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        tokenize_labelled(row, families.tokenizer("chatml"), ())


def test_a_labelled_row_is_no_pair() -> None:
    with pytest.raises(UserError, match="has no 'chosen'.*; rows with a completion and its label are for options.objective: kto"):
        tokenize_pair({"prompt": "Good day. ", "completion": "Yes.", "label": True}, families.tokenizer("chatml"), ())
