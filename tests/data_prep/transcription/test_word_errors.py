"""Word error rate of a clip against what Whisper transcribed there."""

from __future__ import annotations

import pytest

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.transcription.word_errors import list_readings, measure_clip_errors, normalize

SECOND = MASTER_RATE
HEARD = [
    TextUnit(text=" One", start=0, stop=SECOND),
    TextUnit(text=" two,", start=SECOND, stop=2 * SECOND),
    TextUnit(text=" three.", start=2 * SECOND, stop=3 * SECOND),
    TextUnit(text="", start=4 * SECOND, stop=5 * SECOND, error="failed"),
]


def test_only_words_inside_the_clip_count() -> None:
    assert measure_clip_errors("one Two", 0, 2 * SECOND, HEARD, "auto") == 0.0
    assert measure_clip_errors("one two", 0, 3 * SECOND, HEARD, "auto") == 0.5
    assert measure_clip_errors("two", SECOND, 2 * SECOND, HEARD, "english") == 0.0


def test_unknown_errors_are_none() -> None:
    assert measure_clip_errors("…", 0, 2 * SECOND, HEARD, "auto") is None
    assert measure_clip_errors("three", 2 * SECOND, 4 * SECOND + 1, HEARD, "auto") is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [("To exit...", "to exit"), ("Wait… what?", "wait what"), ("don’t, he‘s", "do not he is"), ("‘Yes’ . . .", "yes"), ("A 2.5", "a 2.5")],
)
def test_ellipses_are_no_words_and_typographic_apostrophes_equal_straight_ones(text: str, plain: str) -> None:
    assert normalize(text, "english") == plain


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("He left (at last) [again].", ["he left", "he left at last again"]),
        ("[sigh] (applause)", []),
        ("Hello.", ["hello"]),
        ("...", []),
    ],
)
@pytest.mark.parametrize("language", ["english", "german"])
def test_words_in_brackets_are_read_or_not(text: str, readings: list[str], language: str) -> None:
    assert list_readings(text, language) == readings


@pytest.mark.parametrize(("said", "errors"), [("red green", 0.0), ("red", 0.0), ("red blue", 0.5)])
def test_a_clip_may_say_what_is_in_brackets_or_not(said: str, errors: float) -> None:
    heard = say(*((word, 1 + k / 4) for k, word in enumerate(said.split())))
    assert measure_clip_errors("red (green)", 0, 3 * SECOND, heard, "english") == errors


def say(*words: tuple[str, float]) -> list[TextUnit]:
    """Words of 0.2 s with their middle at so many seconds."""
    return [TextUnit(text=f" {word}", start=round((at - 0.1) * SECOND), stop=round((at + 0.1) * SECOND)) for word, at in words]


@pytest.mark.parametrize(
    ("text", "spoken"), [("A.M.", "AM"), ("X-ray", "xray"), ("voicemail", "voice mail"), ("It is 9 a.m. now", "It's 9 AM now")]
)
def test_words_that_differ_in_spaces_only_are_equal(text: str, spoken: str) -> None:
    heard = say(*((word, 1 + k / 4) for k, word in enumerate(spoken.split())))
    assert measure_clip_errors(text, 0, 3 * SECOND, heard, "english") == 0


def test_a_word_at_an_edge_counts_only_if_it_is_in_the_text() -> None:
    heard = say(("before", 0.9), ("alpha", 1.2), ("bravo", 1.7), ("after", 2.1))
    assert measure_clip_errors("alpha bravo", 1 * SECOND, 2 * SECOND, heard, "english") == 0
    assert measure_clip_errors("alpha bravo after", 1 * SECOND, 2 * SECOND, heard, "english") == 0
    assert measure_clip_errors("bravo", round(1.5 * SECOND), 2 * SECOND, heard, "english") == 0


def test_a_wrong_text_has_errors_though_edges_are_tolerated() -> None:
    heard = say(("before", 0.5), ("alpha", 1.2), ("bravo", 1.7), ("delta", 2.2), ("after", 2.9))
    assert measure_clip_errors("something else here", 1 * SECOND, round(2.4 * SECOND), heard, "english") == 1
    assert measure_clip_errors("alpha bravo romeo tango", 1 * SECOND, round(2.4 * SECOND), heard, "english") == 0.5
    assert measure_clip_errors("before", 1 * SECOND, round(2.4 * SECOND), heard, "english") >= 1
