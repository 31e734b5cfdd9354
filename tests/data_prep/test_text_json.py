"""What is wrong with a JSON text comes as one sentence, and what would be lost of it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.text_json import DEEPEST, loads, one_line, read_object
from finetune.errors import UserError


def nested(depth: int) -> str:
    return '{"a": [' * (depth // 2) + "1" + "]}" * (depth // 2)


def test_values_are_those_of_json() -> None:
    assert loads('{"a": [1, null, {"b": "\\u00fc"}], "c": {}}') == {"a": [1, None, {"b": "ü"}], "c": {}}
    assert loads("\ufeff[]".encode()) == loads("[]".encode("utf-16")) == []
    assert loads(nested(DEEPEST)) and loads("3") == 3


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (nested(DEEPEST + 2), "^nested more than 100 deep$"),
        ("[" * 100_000, "^nested more than 100 deep$"),
        ('{"a": {"role": "user", "x": 1, "role": "tool"}}', "^the key 'role' stands twice in one object$"),
        ("1" * 5000, "digits"),
        (b'"\xff"', "codec can't decode byte 0xff"),
        ("", "Expecting value"),
    ],
)
def test_what_cannot_be_kept_is_told(raw: str | bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        loads(raw)


def test_a_file_of_one_object_is_named_when_it_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"a": 1}')
    assert read_object(path) == {"a": 1}
    path.write_text("[1]")
    with pytest.raises(UserError, match=r"state.json must hold an object in braces, found list"):
        read_object(path)
    with pytest.raises(UserError, match=r"gone.json cannot be read \(No such file"):
        read_object(tmp_path / "gone.json")


def test_what_others_say_becomes_a_part_of_one_line() -> None:
    assert one_line(ValueError("a\n  b\ud800")) == "a b\\ud800"
    assert one_line(FileNotFoundError(2, "No such file", "x")) == "No such file" and one_line(EOFError()) == "EOFError"
