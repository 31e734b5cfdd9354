"""Text file input: which lines are read, and errors with their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech import text_inputs
from overtone.recipes.speech.interface import SpeechRequest

DEFAULTS = SpeechRequest("", "anna", "english")


def test_a_text_file_has_one_text_per_line(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("\ufeffFirst one. \n\n  Ünd the second.\n")
    found = text_inputs.read_lines(file, DEFAULTS)
    assert [(line.number, line.name, line.request.text) for line in found] == [
        (1, "00001.wav", "First one."),
        (3, "00003.wav", "Ünd the second."),
    ]
    assert found[1].place == f"{file}:3" and found[1].request.speaker == "anna"


def test_a_jsonl_row_overrides_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text('{"text": "One.", "audio": "x.flac"}\n{"text": "Two.", "speaker": "bert", "language": null}\n')
    assert [line.request for line in text_inputs.read_lines(file, DEFAULTS)] == [
        SpeechRequest("One.", "anna", "english"),
        SpeechRequest("Two.", "bert", "english"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"\n \n", "a.txt has no text"),
        ("a.txt", b"\xff\xfe\x00", "a.txt: not UTF-8; give a UTF-8 text file"),
        ("a.jsonl", b'{"text": "One."}\n{"text"', "a.jsonl:2: not JSON"),
        ("a.jsonl", b'\n{"words": "One."}', 'a.jsonl:2: expected an object with "text"'),
        ("a.jsonl", b'{"text": "One.", "speaker": 7}', "a.jsonl:1: speaker: expected a text in quotes, found 7"),
        ("a.jsonl", b'{"text": "One.", "language": ["en"]}', "a.jsonl:1: language: expected a text in quotes"),
    ],
)
def test_a_file_without_texts_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        text_inputs.read_lines(tmp_path / name, DEFAULTS)
    with pytest.raises(UserError, match="none.txt: No such file or directory; give a UTF-8"):
        text_inputs.read_lines(tmp_path / "none.txt", DEFAULTS)


def test_all_bad_lines_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("".join(f"{number}\n" for number in range(1, 21)))

    def check(request: SpeechRequest) -> None:
        if int(request.text) > 5:
            raise UserError(f"{request.text} is too many")

    with pytest.raises(UserError) as raised:
        text_inputs.check_lines(text_inputs.read_lines(file, DEFAULTS), check)
    lines = str(raised.value).splitlines()
    assert lines[0] == f"{file}:6: 6 is too many" and len(lines) == 11 and lines[-1] == "and 5 more"
