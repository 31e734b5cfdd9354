"""The one reader of JSON that people wrote: rows, prompts, transcripts, settings. Whatever is wrong with it is one sentence."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

from finetune.errors import UserError

DEEPEST = 100
"""Levels of braces and brackets. What visits every value recurses, and a chat template too; conversations have about eight."""
TOO_DEEP = f"nested more than {DEEPEST} deep"
HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""An escape of half a character. Two halves in a row are a character, so a match is only a suspicion."""


def loads(raw: str | bytes) -> Any:
    """The value of a JSON text; bytes are UTF-8, or start with a mark of another UTF.

    Raises `ValueError`, also for what Python's own reader accepts and nothing later can handle or keep: values nested deeper than
    `DEEPEST`, a key that an object has twice (all but the last would be lost), half a character (`"\\ud800"`, which no UTF can write),
    NaN, infinity, and numbers beyond the range of a float.
    """
    text = raw if isinstance(raw, str) else raw.decode(json.detect_encoding(raw))
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if text.count("[") + text.count("{") > DEEPEST and is_deep(value):
        raise ValueError(TOO_DEEP)
    if not isinstance(raw, bytes) or ("\\u" in text and HALF.search(text)):  # a strict decoder lets no other half through
        _check_characters(value)
    return value


def loads_object(raw: str | bytes) -> dict[str, Any]:
    """The object that a JSON text holds, such as a line of JSONL. Raises `UserError` saying what is wrong with it."""
    try:
        value = loads(raw)
    except ValueError as error:
        raise UserError(f"not a line of JSON ({one_line(error)})") from None
    if not isinstance(value, dict):
        raise UserError(f"expected an object in braces, found {type(value).__name__}")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """A small file that holds one object. Raises `UserError` naming the file."""
    try:
        value = loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold an object in braces, found {type(value).__name__}")
    return value


def one_line(error: object) -> str:
    """What a library says, or what a file holds, as a part of one printable line."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(words.split()).encode("utf-8", "backslashreplace").decode() or type(error).__name__


def is_deep(value: Any) -> bool:
    """Whether it is nested more than `DEEPEST` deep. Does not recurse itself."""
    level = [value]
    for _ in range(DEEPEST + 1):
        holders = [each for each in level if type(each) in (dict, list)]
        if not holders:
            return False
        level = [inner for each in holders for inner in (each.values() if isinstance(each, dict) else each)]
    return True


def _check_characters(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = str(error.object)[error.start]
        raise ValueError(f"half of a character (the lone surrogate {ascii(half)[1:-1]}), which no text file can hold") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r:.40} stands twice in one object")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; write null, or leave the key out")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text:.20} is beyond the range of a float")
    return value
