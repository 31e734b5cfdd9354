"""Texts of a file: what is read, and every problem with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.errors import UserError
from recipes.voice_clone.cli import text_inputs
from recipes.voice_clone.inference.synthesizer import Request

COMMON = Request("", "anna", "english")


def test_a_text_a_line(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("\ufeffFirst one. \n\n  Ünd the second.\n")
    found = text_inputs.read(file, COMMON)
    assert [(line.number, line.name, line.request.text) for line in found] == [
        (1, "00001.wav", "First one."),
        (3, "00003.wav", "Ünd the second."),
    ]
    assert found[1].place == f"{file}:3" and found[1].request.speaker == "anna"


def test_rows_say_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text('{"text": "One.", "audio": "x.flac"}\n{"text": "Two.", "speaker": "bert", "language": null}\n')
    assert [line.request for line in text_inputs.read(file, COMMON)] == [
        Request("One.", "anna", "english"),
        Request("Two.", "bert", "english"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.txt", b"\n \n", "a.txt holds no text"),
        ("a.txt", b"\xff\xfe\x00", "a.txt: .*give a UTF-8 text file"),
        ("a.jsonl", b'{"text": "One."}\n{"text"', "a.jsonl:2: no JSON"),
        ("a.jsonl", b'\n{"words": "One."}', 'a.jsonl:2: expected an object with "text"'),
    ],
)
def test_files_without_texts(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=told):
        text_inputs.read(tmp_path / name, COMMON)
    with pytest.raises(UserError, match="none.txt"):
        text_inputs.read(tmp_path / "none.txt", COMMON)


def test_all_problems_at_once(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text("".join(f"{number}\n" for number in range(1, 21)))

    def check(request: Request) -> None:
        if int(request.text) > 5:
            raise UserError(f"{request.text} is too many")

    with pytest.raises(UserError) as raised:
        text_inputs.check_all(text_inputs.read(file, COMMON), check)
    told = str(raised.value).splitlines()
    assert told[0] == f"{file}:6: 6 is too many" and len(told) == 11 and told[-1] == "and 5 more"
