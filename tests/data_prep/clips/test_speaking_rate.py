"""Speaking rate by what is spoken, not by what is written."""

from __future__ import annotations

import pytest

from overtone.data_prep.clips.speaking_rate import find_plausible_rates, measure_speaking_rate


@pytest.mark.parametrize(
    ("written", "spoken"), [("40.", "forty."), ("17. 30th.", "seventeen. thirtieth."), ("Room 101", "Room one hundred one"), ("Oh", "Oh")]
)
def test_digits_count_as_the_words_that_are_spoken(written: str, spoken: str) -> None:
    assert measure_speaking_rate(written, 1.0, "english") == len(spoken)


@pytest.mark.parametrize(("written", "characters"), [("W.", 4), ("PM", 6), ("MGCP, please", 20), ("HE IS HERE", 10), ("iPhone", 6)])
def test_letters_that_are_spelt_count_as_their_names(written: str, characters: int) -> None:
    assert measure_speaking_rate(written, 1.0, "english") == characters


def test_a_digit_is_one_character_where_a_syllable_is() -> None:
    assert measure_speaking_rate("40个", 1.0, "chinese") == 3


def test_no_speech_is_no_division_by_zero() -> None:
    assert measure_speaking_rate("word", 0.0, "english") == 400


def test_a_number_alone_is_spoken_at_a_plausible_rate() -> None:
    least, most = find_plausible_rates("english")
    assert least <= measure_speaking_rate("40.", 0.57, "english") <= most
