"""Invisible characters are removed and counted, except where a script or an emoji needs them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.data_prep.recordings.invisible_characters import count_hidden, remove_invisible


@pytest.mark.parametrize(
    ("text", "clean", "kinds"),
    [
        ("light\u00adhouse", "lighthouse", {"soft hyphens": 1}),
        ("light\u00ad\n  house", "lighthouse", {"soft hyphens": 1}),
        ("be\u200bfore ba\u2060kery \ufeffend\ufeff", "before bakery end", {"zero-width characters": 4}),
        ("yellow\u0085bicycle\u2028and\u2029car\x0bbus", "yellow bicycle and car bus", {"special line breaks": 4}),
        ("\u200fNobody\u200e \u202aknows\u202c \u2067it\u2069\u061c", "Nobody knows it", {"directional marks": 7}),
        ("a\u00a0b\u202fc\u2009d\u3000e", "a b c d e", {"no-break and other special spaces": 4}),
        ("\x00\x07a\x1b\x7f\ufffeb", "ab", {"control characters": 5}),
        ("a\U000e0041b\ufffcc", "abc", {"control characters": 1, "zero-width characters": 1}),
        ("\u3164a\u115fb\u2800c", " a b c", {"no-break and other special spaces": 3}),
        ("Au\u200cflage so\u200dft", "Auflage soft", {"zero-width characters": 2}),
    ],
)
def test_invisible_characters_are_removed_or_become_a_space(text: str, clean: str, kinds: dict[str, int]) -> None:
    assert remove_invisible(text) == (clean, kinds)


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cخواهم",  # Persian: without it the letters join
        "नमस्\u200dते क्\u200cष",
        "ශ්\u200dරී ലങ്ക ന്\u200d",
        "ខ្ញុំ\u200bទៅ",  # Khmer: where a word ends
        "สวัสดี\u200bครับ",
        "👩\u200d👩\u200d👧 ❤\ufe0f\u200d🔥",
        "\u0600١٢٣",
        "Ein Satz, wie er ist: „ja“ – 3 °C, 5 €…\tÜ\n",
        "日本語の「文」です。ー〜",
        "c\x92è",  # decoded wrongly: `garbled_text` rejects it
    ],
)
def test_what_is_visible_or_needed_stays(text: str) -> None:
    assert remove_invisible(text) == (text, {})


@given(st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), max_size=40))
def test_nothing_invisible_is_left_and_nothing_visible_is_lost(text: str) -> None:
    clean, kinds = remove_invisible(text)
    assert not any(unicodedata.category(one) in ("Cc", "Zl", "Zp") and not "\x80" <= one <= "\x9f" for one in clean)
    assert "".join(
        one for one in text if unicodedata.category(one)[0] in "LNPS" and one not in "\u115f\u1160\u3164\uffa0\u2800\ufffc"
    ) == "".join(one for one in clean if unicodedata.category(one)[0] in "LNPS")
    assert (clean == text) == (not kinds) and remove_invisible(clean)[0] == clean


def test_hidden_characters_of_chats_are_counted_without_joiners_and_spaces() -> None:
    assert count_hidden("a\u00adb\u200b\u202e\u2060 می\u200cخواهم\u00a0👩\u200d👧") == {
        "soft hyphens": 1,
        "zero-width characters": 2,
        "directional marks": 1,
    }
