"""What a conversation must be to teach something, and nothing wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from data_prep.text_shapes import Row
from finetune.errors import UserError

UNWRITABLE = re.compile("[\0\ud800-\udfff]")
"""NUL, which ends a text in many programs, and halves of surrogate pairs, which UTF-8 cannot hold."""


def check(row: Row) -> None:
    """Raises `UserError` with the reason why a normalised row must not be trained on."""
    if any(UNWRITABLE.search(text) for text in _texts(row)):
        raise UserError("a NUL or half a surrogate pair in its text")
    if isinstance(row.get("prompt"), str):
        if not row["completion"].strip():
            raise UserError("an empty completion")
        return
    turns = [*row.get("messages", ()), *row.get("prompt", ()), *row.get("completion", ())]
    for number, turn in enumerate(turns):
        _check_content(turn, number)
    _check_order([turn["role"] for turn in turns])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for part in pair for text in _texts(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in _texts(part))


def _check_content(turn: Row, number: int) -> None:
    content = turn.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in content):
            raise UserError(f"message {number + 1} holds something other than text")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str | None):
        raise UserError(f"the content of message {number + 1} is no text")
    if not (content or "").strip() and not turn.get("tool_calls") and turn["role"] != "tool":
        raise UserError(f"message {number + 1} ({turn['role']}) is empty")


def _check_order(roles: list[str]) -> None:
    """The assistant may speak first, and a last question may stay without an answer; templates differ, and training says so."""
    if "assistant" not in roles:
        raise UserError("no message is the assistant's")
    if any(role in ("system", "developer") for role in roles[1:]):
        raise UserError("a system message that is not the first")
    for number, (before, after) in enumerate(pairwise(roles), start=2):
        if before == after != "tool":
            raise UserError(f"messages {number - 1} and {number} are both the {after}'s")
        if after == "tool" and before not in ("assistant", "tool"):
            raise UserError(f"message {number} is a tool's, and no call stands before it")


def tidy(row: Row) -> bool:
    """Take line breaks off the beginning of answers, in place: templates write their own there, and a tokenizer may join the two.

    Returns whether there were any.
    """
    changed = False
    for turn in [*row.get("messages", ()), *(row["completion"] if isinstance(row.get("completion"), list) else ())]:
        content = turn.get("content")
        if turn["role"] == "assistant" and isinstance(content, str) and content[:1] in ("\n", "\r"):
            turn["content"], changed = content.lstrip("\r\n"), True
    return changed
