"""Errors in a JSON text are one sentence, and values that would be lost are errors."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.storage.strict_json import DEEPEST, first_line, loads, loads_object, one_line, read_object
from tests.finetune.hostile import JSON_PIECES, broken

CASES = 600


def nested(depth: int) -> str:
    return '{"a": [' * (depth // 2) + "1" + "]}" * (depth // 2)


def test_values_are_those_of_json() -> None:
    assert loads('{"a": [1, null, {"b": "\\u00fc"}], "c": {}}') == {"a": [1, None, {"b": "ü"}], "c": {}}
    assert loads("\ufeff[]".encode()) == loads("[]".encode("utf-16")) == []
    assert loads(nested(DEEPEST)) and loads("3") == 3
    assert loads(b'"\\ud83d\\ude00 \\u0000"') == "\U0001f600 \0" and loads("1e300") == 1e300
    assert loads("[" + ",".join(["[1, 2]"] * 500) + "]") == [[1, 2]] * 500, "many brackets are not deep ones"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (nested(DEEPEST + 2), "^nested more than 100 deep$"),
        ("[" * 100_000, "^nested more than 100 deep$"),
        ('{"a": {"role": "user", "x": 1, "role": "tool"}}', "^the key 'role' stands twice in one object$"),
        (b'{"a": ["ok", "\\ud83d"]}', r"^half of a character \(the lone surrogate \\ud83d\), which no text file can hold$"),
        ('{"\\udE00": 1}', "^half of a character"),
        (b'"\xed\xa0\x80"', "codec can't decode byte 0xed"),
        ('"\ud800"', "^half of a character"),
        ('{"a": NaN}', "^NaN is not JSON; write null, or leave the key out$"),
        ("[-Infinity]", "^-Infinity is not JSON"),
        ("1e999", "^the number 1e999 is beyond the range of a float$"),
        (b'{"a": "\0"}', "Invalid control character"),
        ("1" * 5000, "digits"),
        (b'"\xff"', "codec can't decode byte 0xff"),
        ("", "^Expecting value at column 1$"),
        ('{"a": "b', "^Unterminated string starting at column 7$"),
        ('{"a": 1,\n"b"}', "^Expecting ':' delimiter at line 2, column 4$"),
    ],
)
def test_values_that_json_cannot_keep_are_refused(raw: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
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


def test_a_line_is_an_object() -> None:
    assert loads_object(b'{"a": 1}\n') == {"a": 1}
    for raw, words in ((b"[1]", "expected an object in braces, found list"), (b"{", r"not a line of JSON \(Expecting property name")):
        with pytest.raises(UserError, match=words):
            loads_object(raw)


def test_an_error_at_the_end_of_a_line_has_its_column() -> None:
    with pytest.raises(UserError, match="at column 10"):
        loads_object(b'{"a": 190\n')


def test_any_text_is_refused_or_survives_a_round_trip() -> None:
    sound = json.dumps({"text": "ü \U0001f600", "messages": [{"role": "user", "content": "x"}], "n": [1, -2.5e3, None, True, {}]}).encode()
    ends: Counter[str] = Counter()
    for number in range(CASES):
        raw = broken(random.Random(number), sound, JSON_PIECES)
        try:
            value = loads(raw)
        except ValueError:
            ends["refused"] += 1
        else:
            ends["kept"] += 1
            assert loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode()) == value, f"case {number}"
    assert min(ends["refused"], ends["kept"]) > CASES / 20, ends


def test_foreign_messages_are_quoted_in_one_line() -> None:
    assert one_line(ValueError("a\n  b\ud800")) == "a b\\ud800"
    assert one_line(FileNotFoundError(2, "No such file", "x")) == "No such file" and one_line(EOFError()) == "EOFError"


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("\none\ntwo")) == "one"
    assert first_line(MemoryError()) == "MemoryError"
