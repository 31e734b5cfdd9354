"""Tests of `overtone.recipes.speech.selection.stratified_texts`."""

from __future__ import annotations

from collections import Counter

import pytest

from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.selection.stratified_texts import ENDS_QUESTION, LONG, NUMBER, OTHER, QUESTION, SHORT, choose_texts


def items(*texts: str, speaker: str = "anna", language: str = "english") -> list[Item]:
    return [Item(f"val-{at:04d}", text, speaker, language) for at, text in enumerate(texts)]


PLAIN = [f"This is the plain sentence {word} of them." for word in "abcdefghijklmnopqrstuvwxyz"]


def test_each_kind_is_among_the_texts() -> None:
    data = items(*PLAIN, "Yes.", "It costs 12 dollars and no more.", "Where did the old boats go then?", "Long " * 40 + "text.")
    chosen = choose_texts(data, 6)
    assert Counter(chosen.kinds.values()) == {SHORT: 1, NUMBER: 1, QUESTION: 1, LONG: 1, OTHER: 2}
    assert [item.text for item in chosen.items][2:5] == ["Yes.", "It costs 12 dollars and no more.", "Where did the old boats go then?"]
    assert chosen.notes == [
        "Texts: 6 of 30: 1 short (4 to 4 characters), 1 number (32 to 32 characters), 1 question (32 to 32 characters), "
        "1 long (205 to 205 characters), 2 other (37 to 37 characters)."
    ]
    assert choose_texts(data, 6) == chosen, "the same texts every time"
    assert Counter(choose_texts(data, 24).kinds.values()) == {SHORT: 4, NUMBER: 1, QUESTION: 1, LONG: 4, OTHER: 14}


def test_what_the_data_lacks_is_reported() -> None:
    chosen = choose_texts(items(*PLAIN), 12)
    assert len(chosen.items) == 12 and "No text has a number in digits or a question" in chosen.notes[1]


def test_a_text_is_spoken_once_by_each_speaker() -> None:
    data = [*items("Hello there.", "hello THERE", "Good day."), *(Item("b", "Hello there.", "bert", "english"),)]
    assert [item.key for item in choose_texts(data, 24).items] == ["val-0000", "val-0002", "b"]


@pytest.mark.parametrize(
    ("text", "asks"), [("Is it?", True), ("是吗？", True), ("“Is it?”", True), ("Is it? No.", False), ("Ποιος\u037e", True)]
)
def test_questions_are_recognized_by_their_mark(text: str, asks: bool) -> None:
    assert bool(ENDS_QUESTION.search(text)) == asks
