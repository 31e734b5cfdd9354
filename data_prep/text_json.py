"""JSON from strangers: whatever is wrong with it comes as one sentence."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from finetune.errors import UserError

DEEPEST = 100
"""Levels of braces and brackets. What goes over every value recurses, and a chat template too; conversations have about eight."""
TOO_DEEP = f"nested more than {DEEPEST} deep"


def loads(raw: str | bytes) -> Any:
    """The value of a JSON text; bytes are UTF-8, or start with a mark of another UTF.

    Raises `ValueError`, also for what is JSON and cannot be kept: nested deeper than `DEEPEST`, or one key twice in an object, of which
    all but the last would be lost.
    """
    try:
        value = json.loads(raw, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if _is_deep(value):
        raise ValueError(TOO_DEEP)
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        holders = [each for each in level if isinstance(each, dict | list)]
        if not holders:
            return False
        level = [inner for each in holders for inner in (each.values() if isinstance(each, dict) else each)]
    return True


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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r:.40} stands twice in one object")
    return found
