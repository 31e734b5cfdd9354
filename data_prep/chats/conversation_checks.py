"""Validation of chat rows: roles, order of messages, empty content, values that JSON cannot represent."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from overtone.data_prep.chats.chat_messages import ChatRow
from overtone.finetune.errors import UserError

PLACEHOLDER = re.compile(r"<(?:image|image_\d+|ImageHere)>|<\|(?:image|audio|video)(?:_pad|_\d+)?\|>")
"""Placeholders of images, audio and video in the text of datasets for multimodal models (LLaVA, Phi-3, Qwen-VL)."""
UNWRITABLE = re.compile("[\0\ud800-\udfff]")
"""NUL, which ends strings in many programs, and lone surrogates, which UTF-8 cannot encode."""


ANSWERS = ("completion", "chosen", "rejected")
"""Keys of a normalised row with answers to its `prompt`."""


def check_conversation(row: ChatRow) -> None:
    """Raises `UserError` with the reason why a normalised row must not be trained on."""
    check_storable(row)
    if isinstance(row.get("prompt"), str):
        if not row["completion"].strip():
            raise UserError("an empty completion")
        if found := PLACEHOLDER.search(row["prompt"]):
            raise UserError(f"the prompt refers to an image, audio or video by {found[0]}, which a text model cannot use")
        return
    turns = [*row.get("messages", ()), *row.get("prompt", ()), *row.get("completion", ())]
    check_turns(turns)
    if all(turn["role"] != "assistant" for turn in turns):
        raise UserError("there is no message of the assistant")
    answers = [turn for turn in row.get("completion", turns) if turn["role"] == "assistant"]
    if not answers:
        raise UserError("the completion has no message of the assistant")
    if all(turn.get("weight") == 0 for turn in answers):
        raise UserError("every answer has weight 0, so nothing would be learned")


def check_turns(turns: Sequence[ChatRow]) -> None:
    """Raises `UserError` for messages that are empty or refer to what a text model cannot use, and for an order that is not one of a
    conversation."""
    for number, turn in enumerate(turns, start=1):
        _check_content(turn, number)
    _check_order([turn["role"] for turn in turns])


def check_storable(value: object) -> None:
    """Raises `UserError` for values that tables and Python's JSON accept but JSON in UTF-8 does not."""
    if isinstance(value, str):
        if UNWRITABLE.search(value):
            raise UserError("a NUL or half a surrogate pair in its text")
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_storable(key)
            check_storable(inner)
    elif isinstance(value, list):
        for inner in value:
            check_storable(inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"the number {value}, which JSON does not have")
    elif not isinstance(value, int | float | None):
        raise UserError(f"a value of the type {type(value).__name__}, which JSON does not have")


def _check_content(turn: ChatRow, number: int) -> None:
    content = turn.get("content")
    if turn["role"] != "assistant" and (found := PLACEHOLDER.search(content or "")):
        raise UserError(f"message {number} refers to an image, audio or video by {found[0]}, which a text model cannot use")
    if not (content or "").strip() and not turn.get("tool_calls") and turn["role"] != "tool":
        raise UserError(f"message {number} ({turn['role']}) is empty")


def _check_order(roles: list[str]) -> None:
    """Check the order of roles. The assistant may come first, and a last question may be unanswered: chat templates differ in this."""
    if any(role in ("system", "developer") for role in roles[1:]):
        raise UserError("a system message that is not the first")
    for number, (before, after) in enumerate(pairwise(roles), start=2):
        if before == after != "tool":
            hint = "; --join-turns joins them" if after in ("user", "assistant") else ""
            raise UserError(f"messages {number - 1} and {number} both have the role {after}{hint}")
        if after == "tool" and before not in ("assistant", "tool"):
            raise UserError(f"message {number} is a tool result without a tool call before it")


def join_repeated_turns(row: ChatRow) -> int:
    """Join messages of the same role in a row (user or assistant, both plain text) in place, with an empty line between them.

    Returns how many were joined to the one before. Messages with other fields than role and content stay as they are.
    """
    joined = 0
    for key in ("messages", "prompt", *ANSWERS):
        turns: list[ChatRow] = []
        for turn in row[key] if isinstance(row.get(key), list) else ():
            if turns and _can_join(turns[-1], turn):
                turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}\n\n{turn['content']}"}
                joined += 1
            else:
                turns.append(turn)
        if turns:
            row[key] = turns
    return joined


def _can_join(before: ChatRow, turn: ChatRow) -> bool:
    plain = all(each.keys() == {"role", "content"} and isinstance(each["content"], str) for each in (before, turn))
    return plain and before["role"] == turn["role"] in ("user", "assistant")


def strip_answer_newlines(row: ChatRow) -> bool:
    """Remove leading line breaks of answers in place: templates add their own, and a tokenizer may merge the two.

    Returns whether any were removed.
    """
    changed = False
    answers = [turn for key in ANSWERS if isinstance(row.get(key), list) for turn in row[key]]
    for turn in [*row.get("messages", ()), *answers]:
        content = turn.get("content")
        if turn["role"] == "assistant" and isinstance(content, str) and content[:1] in ("\n", "\r"):
            turn["content"], changed = content.lstrip("\r\n"), True
    return changed
