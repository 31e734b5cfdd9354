"""metadata.csv: three fields have two meanings, distinguished by all lines together."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.recordings.ljspeech_metadata import parse_table
from overtone.finetune.errors import UserError


def texts(*lines: str) -> dict[str, tuple[str | None, str]]:
    return {name: (entry.speaker, entry.text) for name, entry in parse_table(Path("metadata.csv"), "\n".join(lines))}


def test_two_fields_are_a_name_and_a_text() -> None:
    assert texts("a|One.", "", "wavs/b.wav|Two.", "c.d|Three.") == {
        "a": (None, "One."),
        "wavs/b.wav": (None, "Two."),
        "c.d": (None, "Three."),
    }


def test_three_fields_may_be_a_text_and_its_normalised_form() -> None:
    lines = ["a|Dr. Watson came in 1895.|Doctor Watson came in eighteen ninety-five.", "b|No.|No.", "c|5|five", "d|He left.|He left."]
    assert texts(*lines)["a"] == (None, "Doctor Watson came in eighteen ninety-five.")
    assert texts(*lines)["c"] == (None, "five")
    assert texts("a|你好，世界1号。|你好，世界一号。") == {"a": (None, "你好，世界一号。")}


def test_three_fields_may_be_a_speaker_and_a_text() -> None:
    lines = [
        "a|anna|The train was late again.",
        "b|bob lee|Nobody knew what to do about it.",
        "c|anna|So we waited.",
        "d|bob lee|And waited.",
    ]
    assert texts(*lines)["b"] == ("bob lee", "Nobody knew what to do about it.")
    assert [speaker for speaker, _ in texts(*lines).values()] == ["anna", "bob lee", "anna", "bob lee"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a"], "metadata.csv:1: expected id|text"),
        (["a|b", "talk|"], "metadata.csv:2: expected id|text"),
        (["a|b|c|d"], "metadata.csv:1: expected id|text"),
        (["|text"], "metadata.csv:1: expected id|text"),
        (["a|anna|The train was late.", "b|bob|Nobody knew what to do."], "metadata.csv:1: three fields are"),  # each name once: a guess
        (["a|The train was late.|anna", "b|Nobody knew what to do.|anna"], "metadata.csv:1: three fields are"),
        (["a|anna|The train was late.", "b|anna|Nobody knew.", "c|Two fields."], "metadata.csv:1: three fields are"),
    ],
)
def test_a_malformed_table_is_refused_with_the_line(lines: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        texts(*lines)
    assert str(caught.value).startswith(message)
