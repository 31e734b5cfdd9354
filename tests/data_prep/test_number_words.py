"""Numbers in words, as they are probably spoken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.number_words import spell_numbers


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("0", "zero"),
        ("13, 40 and 85", "thirteen, forty and eighty five"),
        ("100 or 342", "one hundred or three hundred forty two"),
        ("12,000 of 1,000,000", "twelve thousand of one million"),
        (
            "1984, 1905, 1900, 2000, 2007, 2024",
            "nineteen eighty four, nineteen oh five, nineteen hundred, two thousand, two thousand seven, twenty twenty four",
        ),
        ("extension 4242, 4200", "extension four two four two, forty two hundred"),
        ("007 5551234", "zero zero seven five five five one two three four"),
        ("18th, 20th, 21st, 102nd, 3rd", "eighteenth, twentieth, twenty first, one hundred second, third"),
        ("H323, 3D.", "H three hundred twenty three, three D."),
        ("٤٠", "forty"),
        ("no digits", "no digits"),
    ],
)
def test_numbers_are_read_as_people_read_them(written: str, spoken: str) -> None:
    assert spell_numbers(written) == spoken


@given(st.text(st.sampled_from("0123456789,.x "), max_size=20))
def test_every_digit_is_spelt(text: str) -> None:
    assert not any(character.isdigit() for character in spell_numbers(text))


def test_more_digits_than_python_reads_as_a_number_are_spelt_one_by_one() -> None:
    assert spell_numbers("1" * 5000) == " ".join(["one"] * 5000)
    assert spell_numbers("1,000,000,000,000").startswith("one zero zero") and spell_numbers("100,000,000,000") == "one hundred billion"
