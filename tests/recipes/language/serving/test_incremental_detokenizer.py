"""Whole characters, the tokenizer's own text, and stop strings across tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.recipes.language.serving.incremental_detokenizer import AnswerText
from tests.recipes.llm_sft import families

TEXT = "naïve 日本語 🙂👩‍👩‍👧 and 🇳🇴, done. \n\n  It is."


class LetterTokenizer:
    """A token for each character."""

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))


def read(answer: AnswerText, ids: list[int]) -> list[str]:
    pieces = list[str]()
    for token in ids:
        pieces.append(answer.add(token))
        if answer.stopped:
            return pieces
    return [*pieces, answer.finish()]


@pytest.mark.parametrize("tokenizer", [families.tokenizer("chatml"), families.spaced()], ids=["bytes", "spaced"])
def test_pieces_are_whole_characters_and_together_the_tokenizers_text(tokenizer: Any) -> None:
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    pieces = read(AnswerText(tokenizer), ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert sum(1 for piece in pieces if piece) > 10


def test_no_piece_ends_within_a_character() -> None:
    tokenizer = families.tokenizer("chatml")
    ids = tokenizer("日本🙂", add_special_tokens=False)["input_ids"]
    assert len(ids) > 6 and "\ufffd" not in "".join(read(AnswerText(tokenizer), ids))
    assert [piece for piece in read(AnswerText(tokenizer), ids) if piece] == ["日", "本", "🙂"]


def test_an_answer_that_is_cut_off_within_a_character_ends_with_the_tokenizers_text_for_it() -> None:
    tokenizer = families.tokenizer("chatml")
    ids = tokenizer("a🙂", add_special_tokens=False)["input_ids"][:-1]
    assert "".join(read(AnswerText(tokenizer), ids)) == tokenizer.decode(ids) and tokenizer.decode(ids).startswith("a\ufffd")


def test_special_tokens_are_left_out() -> None:
    tokenizer = families.tokenizer("chatml")
    ids = tokenizer("<|im_start|>Yes<|im_start|>.", add_special_tokens=False)["input_ids"]
    assert "".join(read(AnswerText(tokenizer), ids)) == "Yes."


@given(st.text("ab.", max_size=12), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3))
def test_an_answer_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    answer = AnswerText(LetterTokenizer(), stops)
    pieces = read(answer, [*map(ord, text)])
    places = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not places:
        assert "".join(pieces) == text and not answer.stopped
        return
    found = text[: places[0]]
    assert answer.stopped and answer.tokens == places[0]
    assert "".join(pieces) == found[: min(found.find(stop) for stop in stops if stop in found)]


def test_text_that_is_no_stop_string_after_all_is_not_held_longer_than_needed() -> None:
    answer = AnswerText(LetterTokenizer(), ["stop"])
    assert [answer.add(ord(letter)) for letter in "a st.s"] == ["a", " ", "", "", "st.", ""]
    assert answer.finish() == "s"
