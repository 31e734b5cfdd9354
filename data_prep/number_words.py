"""English words for what is written in digits: a text is compared with its sound by what is spoken, and "40" is spoken as "forty"."""

from __future__ import annotations

import re

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
LONGEST = 12
"""Digits of the largest number that is read as one: 999 billion."""
ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth", "twelve": "twelfth"}
NUMBER = re.compile(r"(\d{1,3}(?:[,.]\d{3})+(?!\d)|\d+)((?:st|nd|rd|th)\b)?")
YEAR = re.compile(r"1[1-9]\d\d|20[1-9]\d")


def spell_numbers(text: str) -> str:
    """Return the text with each number in words. Years are read as two pairs of digits; other numbers of more than three digits, and those
    with a leading zero, digit by digit, unless they are round ("4000") or have separators ("12,345")."""
    return NUMBER.sub(_replace_number, text)


def _replace_number(found: re.Match[str]) -> str:
    words = _spell_number(found[1])
    before, after = (found.string[max(0, at) : at + 1] for at in (found.start() - 1, found.end()))
    return f"{' ' * before.isalpha()}{_make_ordinal(words) if found[2] else words}{' ' * after.isalpha()}"


def _spell_number(written: str) -> str:
    digits = re.sub("[,.]", "", written)
    if len(digits) > LONGEST:  # also more than `int` reads
        return " ".join(ONES[int(digit)] for digit in digits)
    number = int(digits)
    if YEAR.fullmatch(written) and number % 100:
        last = ["oh", ONES[number % 10]] if number % 100 < 10 else _list_words(number % 100)
        return " ".join([*_list_words(number // 100), *last])
    if len(written) == 4 and number % 1000 >= 100 and number % 100 == 0:
        return " ".join([*_list_words(number // 100), "hundred"])
    is_whole = digits != written or len(written) < 4 or number % 1000 == 0 or (len(written) == 4 and number % 1000 < 10)
    if not is_whole or (written[0] == "0" and len(written) > 1):
        return " ".join(ONES[int(digit)] for digit in digits)
    return " ".join(_list_words(number))


def _list_words(number: int) -> list[str]:
    """Return the words of a number of at most `LONGEST` digits."""
    for size, name in SCALES:
        if number >= size:
            rest = number % size
            return [*_list_words(number // size), name, *(_list_words(rest) if rest else [])]
    if number < len(ONES):
        return [ONES[number]]
    return [TENS[number // 10], *([ONES[number % 10]] if number % 10 else [])]


def _make_ordinal(words: str) -> str:
    before, space, last = words.rpartition(" ")
    return before + space + ORDINALS.get(last, f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
