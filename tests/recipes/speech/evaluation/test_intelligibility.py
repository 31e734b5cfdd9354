"""Errors by hand, the field's normalisation, and a real Whisper that listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.errors import UserError
from recipes.speech.evaluation import intelligibility as hearing
from recipes.speech.evaluation.intelligibility import Errors

SAID = ("The train leaves at seven.", "She counted the boats.", "Nobody had seen the sky.")


def test_errors_counted_by_hand() -> None:
    # the | cat sat -> sits | on the mat | + today: one substitution, one insertion, of six words
    found = hearing.compare("The cat sat on the mat.", "the cat sits on the mat today", "english")
    # sat -> sits: a -> i and s inserted before t (2 edits), " today" inserted (6)
    assert found == Errors(words=6, wrong_words=2, characters=22, wrong_characters=8)
    assert hearing.compare("The cat.", "", "english") == Errors(2, 2, 7, 7)


def test_spelling_numbers_and_contractions_are_no_errors_in_english() -> None:
    found = hearing.compare("Mr. O'Neil's colour isn't twenty-one!", "mister o'neil's color is not 21", "english")
    assert found is not None and found.wrong_words == 0


def test_other_languages_lose_case_and_punctuation_only() -> None:
    assert hearing.normalize("Schön, „nicht“ wahr?", "german") == "schön nicht wahr"
    assert hearing.normalize("isn't twenty-one", "auto") == "isn t twenty one"


def test_languages_without_spaces_are_compared_by_letter() -> None:
    assert hearing.compare("你好世界。", "你好世", "chinese") == Errors(words=4, wrong_words=1, characters=7, wrong_characters=2)


def test_a_text_without_words_says_nothing() -> None:
    assert hearing.compare("(laughs)", "ha", "english") is None


def test_shuffled_texts_raise_the_rate() -> None:
    right = [hearing.compare(text, text, "english") for text in SAID]
    shuffled = [hearing.compare(text, other, "english") for text, other in zip(SAID, SAID[1:] + SAID[:1], strict=True)]
    assert sum(one.wrong_words for one in right if one) == 0
    assert sum(one.wrong_words for one in shuffled if one) >= 10, "nearly every of the 14 words"


def test_a_real_recogniser_listens_and_says_the_same_again(babbler: Path) -> None:
    hearing.check(str(babbler))
    model = hearing.load(str(babbler))
    wave = np.sin(2 * np.pi * 220 * np.arange(24_000) / 24_000).astype(np.float32)
    first, again = (hearing.listen(model, wave, "english") for _ in range(2))
    assert first == again and first.problem == "" and first.text
    assert hearing.listen(model, wave[:0], "english").text == ""
    assert hearing.language_of(model, "auto") == "auto" and hearing.language_of(model, "german") == "german"


def test_a_language_that_the_recogniser_lacks_is_refused(babbler: Path) -> None:
    model: Any = hearing.load(str(babbler))
    hearing.require_languages(model, ["auto", "german", "english"])
    with pytest.raises(UserError, match="not supported by Whisper"):
        hearing.require_languages(model, ["german", "klingon"])


def test_an_unknown_name_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(UserError, match="--asr enormous: neither a file nor one of"):
        hearing.check("enormous")


def test_the_wer_of_several_texts_weighs_words_equally() -> None:
    said = "one two three four five six seven eight nine"
    assert hearing.share_of_wrong_words([(said, said), ("cat", "dog")], "german") == 0.1
