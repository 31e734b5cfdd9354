"""Strict JSON parser for user-written files (rows, prompts, transcripts, settings), with one-line error messages."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files

if TYPE_CHECKING:
    from pydantic import JsonValue

DEEPEST = 100
"""Maximum nesting. Code that visits all values is recursive, as are chat templates; conversations have about eight levels."""
TOO_DEEP = f"nested more than {DEEPEST} deep"
HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""Escape of a surrogate. Two of them in a row may be a character, so a match needs a further check."""


class JsonSyntaxError(ValueError):
    """A text that is not JSON. The message has the column, and the line if there are several."""

    def __init__(self, error: json.JSONDecodeError, text: str) -> None:
        self.problem, self.line = error.msg.removesuffix(" at"), error.lineno
        line = f"line {error.lineno}, " if "\n" in text.strip() else ""
        super().__init__(f"{self.problem} at {line}column {error.colno}")


def loads(raw: str | bytes) -> Any:
    """Parse a JSON text; bytes are UTF-8, or another UTF encoding with a byte order mark.

    Raises `ValueError`, also for input that Python's parser accepts but later code cannot handle: nesting deeper than `DEEPEST`, duplicate
    keys (all but the last would be lost), lone surrogates (`"\\ud800"`, which no UTF can encode), NaN, infinity, and numbers beyond the
    range of a float.
    """
    text = raw if isinstance(raw, str) else raw.decode(json.detect_encoding(raw))
    text = text.rstrip(" \t\r\n")  # an error at the end is on the line that lacks something
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except json.JSONDecodeError as error:
        raise JsonSyntaxError(error, text) from None
    if text.count("[") + text.count("{") > DEEPEST and is_deep(value):
        raise ValueError(TOO_DEEP)
    if not isinstance(raw, bytes) or ("\\u" in text and HALF.search(text)):  # the decoder rejects all other lone surrogates
        _check_characters(value)
    return value


def loads_object(raw: str | bytes) -> dict[str, Any]:
    """Parse a JSON object, such as a line of JSONL. Raises `UserError` with the problem."""
    try:
        value = loads(raw)
    except ValueError as error:
        raise UserError(f"not a line of JSON ({one_line(error)})") from None
    if not isinstance(value, dict):
        raise UserError(f"expected an object in braces, found {type(value).__name__}")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Read a small file with one JSON object. Raises `UserError` naming the file."""
    try:
        value = loads(input_files.read_bytes(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold an object in braces, found {type(value).__name__}")
    return value


def one_line(error: object) -> str:
    """Return an error message or a text as one printable line."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(words.split()).encode("utf-8", "backslashreplace").decode() or type(error).__name__


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its type if it has none, as `MemoryError`."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def is_deep(value: object) -> bool:
    """Return whether a value is nested deeper than `DEEPEST`. Not recursive."""
    level: list[object] = [value]
    for _ in range(DEEPEST + 1):
        holders = [each for each in level if isinstance(each, dict | list)]
        if not holders:
            return False
        level = [inner for each in holders for inner in (each.values() if isinstance(each, dict) else each)]
    return True


def _check_characters(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = str(error.object)[error.start]
        raise ValueError(f"half of a character (the lone surrogate {ascii(half)[1:-1]}), which no text file can hold") from None


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r:.40} stands twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; write null, or leave the key out")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text:.20} is beyond the range of a float")
    return value
