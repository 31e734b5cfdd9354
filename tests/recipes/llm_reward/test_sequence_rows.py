"""Tests of `overtone.recipes.llm_reward.sequence_rows`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.llm_reward.sequence_rows import list_unused_keys, read, read_margin, show, split_sample
from tests.recipes.llm_reward.tiny_scorers import LABELLED, PAIRS, processor_of

LABELS = ("bad", "good", "open")
TEXT_PAIR = {"prompt": "Good day.", "chosen": " And to you.", "rejected": " No."}


def test_a_pair_is_two_whole_chats_up_to_the_last_token_that_is_no_padding() -> None:
    processor = processor_of()
    sample = read({**PAIRS[0], "margin": 2}, processor, Path())
    chosen, rejected = (side["ids"].tolist() for side in split_sample(sample))
    whole = [
        processor.tokenizer.apply_chat_template([*PAIRS[0]["prompt"], *PAIRS[0][side]], tokenize=False) for side in ("chosen", "rejected")
    ]
    assert [processor.tokenizer.decode(ids) for ids in (chosen, rejected)] == whole
    assert float(sample["margin"]) == 2 and chosen[-1] != processor.pad, "a line break follows the end of the turn"
    texts = [side["ids"].tolist() for side in split_sample(read(TEXT_PAIR, processor, Path()))]
    assert [processor.tokenizer.decode(ids) for ids in texts] == ["Good day. And to you.", "Good day. No."]


def test_a_row_with_a_label_is_one_sequence() -> None:
    processor = processor_of(labels=LABELS)
    sample = read(LABELLED[0], processor, Path())
    assert sample["ids"].tolist() == processor.tokenizer("yes 0")["input_ids"]
    assert (int(sample["label"]), int(sample["classes"])) == (1, 3)
    chat = read(LABELLED[-1], processor, Path())
    assert "Perhaps." in processor.tokenizer.decode(chat["ids"]) and int(chat["label"]) == 2


def test_both_sides_and_the_label_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = show(read(TEXT_PAIR, processor_of(), Path()), processor_of())
    assert "chosen:\nGood day. And to you⟦.⟧" in shown and "rejected:\nGood day. No⟦.⟧" in shown
    classes = processor_of(labels=LABELS)
    alone = show(read(LABELLED[0], classes, Path()), classes)
    assert alone == "label 'good':\nyes ⟦0⟧\n(4 tokens; the value is read at the last one)"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({**TEXT_PAIR, "rejected": TEXT_PAIR["chosen"]}, "chosen and rejected have the same tokens, so the pair has no preference"),
        ({**TEXT_PAIR, "rejected": " And to you.<|im_end|>"}, "chosen and rejected have the same tokens"),
        ({**TEXT_PAIR, "margin": "large"}, '"margin" must be a number between -1000 and 1000, found \'large\''),
        ({**TEXT_PAIR, "margin": True}, '"margin" must be a number'),
        ({**TEXT_PAIR, "margin": float("nan")}, '"margin" must be a number'),
        ({**TEXT_PAIR, "margin": 1e9}, '"margin" must be a number'),
        ({**TEXT_PAIR, "margin": 10**400}, '"margin" must be a number'),
        ({"text": "x", "label": "good"}, "has a label, and neither chosen nor rejected; for a classifier set options.objective"),
        ({"prompt": "x", "chosen": "y"}, "has no 'rejected'"),
        ({"prompt": [{"role": "user"}], "chosen": [{"role": "assistant", "content": "a"}], "rejected": PAIRS[0]["rejected"]},
         r"chosen: messages\[0\]\.content is missing"),
    ],
)  # fmt: skip
def test_a_pair_that_cannot_be_learned_is_an_error(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read(row, processor_of(), Path())


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": "x"}, '"label" must be the name of a class, found None'),
        ({"text": "x", "label": "fine"}, "\"label\" is 'fine', which is not among the 3 labels"),
        ({"text": "", "label": "good"}, "the row has no tokens besides padding"),
        ({"text": "<|im_end|>", "label": "good"}, "the row has no tokens besides padding"),
        ({"text": 3, "label": "good"}, '"text" must be a text, found 3'),
        ({"text": "x", "messages": [], "label": "good"}, "the row has text and messages or prompt; remove one of them"),
        ({"label": "good"}, "expected"),
    ],
)
def test_a_labelled_row_that_cannot_be_learned_is_an_error(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read(row, processor_of(labels=LABELS), Path())


def test_a_row_without_a_margin_has_0() -> None:
    assert read_margin({}) == read_margin({"margin": None}) == 0.0 and read_margin({"margin": -0.5}) == -0.5


def test_keys_that_no_template_reads_are_counted() -> None:
    message = {"role": "user", "content": "Perhaps.", "mood": "calm"}
    assert list_unused_keys({"messages": [message], "label": "open"}, processor_of(labels=LABELS)) == ["key mood of messages"]
    assert list_unused_keys({**PAIRS[0], "prompt": [message]}, processor_of()) == ["key mood of messages"]
    assert list_unused_keys({**PAIRS[0], "margin": 1, "system": "Be brief.", "text": "x"}, processor_of()) == ["key system", "key text"]
    assert list_unused_keys(LABELLED[0], processor_of(labels=LABELS)) == []
    assert list_unused_keys({"text": "My order is late.", "label": "open", "topic": "post"}, processor_of(labels=LABELS)) == ["key topic"]
