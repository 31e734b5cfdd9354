"""Tests of `overtone.recipes.speech.spoken_text`."""

from __future__ import annotations

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.interface import SpeechRequest
from overtone.recipes.speech.spoken_text import clean_text, describe_total, has_speech, prepare_request


@pytest.mark.parametrize(
    ("text", "spoken", "removed"),
    [
        ("Hello 😊.", "Hello.", "1 emoji"),
        ("good😊bye", "good bye", "1 emoji"),
        ("Hi 👨‍👩‍👧‍👦 there 🇩🇪 and 👍🏽!", "Hi there and!", "3 emoji"),
        ("1️⃣ is first, ❤️ is ☎.", "1 is first, is.", "3 emoji"),
        ("**Bold** and *it* and `code`, see [the page](https://x.example/a_(b)).", "Bold and it and code, see the page.", "4 markup"),
        ("# Head\n* item\n> said\n__strong__ ~~gone~~", "Head\nitem\nsaid\nstrong gone", "5 markup"),
        ("Run:\n```python\nprint(1)\n```\n---\n| a | b |\n|:--|--:|", "Run:\n\nprint(1)\n\n\n| a | b |", "4 markup"),
        ("<b>bold</b>face<br>below <prosody rate='slow'>slow</prosody>", "boldface below slow", "5 markup"),
        ("so\u00adft\u200b and \u2066right\u2069\ufeff", "soft and right", "2 directional marks, 1 soft hyphen, 2 zero-width characters"),
    ],
)
def test_what_nobody_speaks_is_dropped_and_counted(text: str, spoken: str, removed: str) -> None:
    cleaned = clean_text(text)
    assert (cleaned.text, cleaned.describe_removed()) == (spoken, removed)
    assert clean_text(spoken).text == spoken, "a second time changes nothing"


@pytest.mark.parametrize(
    "text",
    [
        "It costs 5 € – or $6.50, i.e. 10 % more; that's “a lot”…",
        "3 * 4 = 12, 2*3*4, a_b and file_name_x, x < 3 and y > 4",
        "<laugh> That is funny <sigh>",
        "© 2024 Acme™ ‼",
        "می‌خواهم  क्‍ष",
        "C# and F#, #1, R&D",
        " Two  spaces\n\nand paragraphs ",
        "今天天气很好，我们去公园玩。",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned.text == text and not cleaned.removed and has_speech(text)


@pytest.mark.parametrize("text", ["", " \n", "…", "—", "😊", "*", "\u200b", "**", "?!", "<b></b>", "♪", "_", "![](a.png)", "- - -"])
def test_a_text_of_nothing_else_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^the text has nothing to speak.*give the words to speak$"):
        prepare_request(SpeechRequest(text, None), "the text")


def test_the_totals_of_many_texts_are_counted() -> None:
    assert describe_total([clean_text(text) for text in ("a 😊", "b", "*c* 😊")]) == "2 emoji, 1 markup from 2 texts"
    assert describe_total([clean_text("a")]) == ""


def test_long_hostile_texts_take_time_that_grows_with_their_length() -> None:
    for text in (
        "*a " * 30_000,
        "_a_" * 30_000,
        "[" * 90_000,
        "<b " * 30_000,
        "`" * 90_000,
        "\n---x" * 30_000,
        "- " * 40_000 + "x",
        "# " + " " * 90_000,
        "😊" * 30_000,
    ):
        clean_text(text)
