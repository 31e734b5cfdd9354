"""Word error rate of a clip against what Whisper transcribed there."""

from __future__ import annotations

from overtone.data_prep.segmentation.clip_segmentation import TextUnit
from overtone.data_prep.transcription.word_errors import measure_clip_errors

HEARD = [
    TextUnit(text=" One", start=0, stop=10),
    TextUnit(text=" two,", start=10, stop=20),
    TextUnit(text=" three.", start=20, stop=30),
    TextUnit(text="", start=40, stop=50, error="failed"),
]


def test_only_words_inside_the_clip_count() -> None:
    assert measure_clip_errors("one Two", 0, 20, HEARD, "auto") == 0.0
    assert measure_clip_errors("one two", 0, 30, HEARD, "auto") == 0.5
    assert measure_clip_errors("two", 10, 20, HEARD, "english") == 0.0


def test_unknown_errors_are_none() -> None:
    assert measure_clip_errors("…", 0, 20, HEARD, "auto") is None
    assert measure_clip_errors("three", 20, 45, HEARD, "auto") is None
