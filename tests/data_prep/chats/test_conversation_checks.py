"""Conversations that must not be trained on are rejected with a reason; the others pass."""

from __future__ import annotations

from typing import Any

import pytest

from overtone.data_prep.chats.conversation_checks import check_conversation, strip_answer_newlines
from overtone.finetune.errors import UserError


def chat(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
USER, ANSWER, TOOL = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}, {"role": "tool", "content": ""}


@pytest.mark.parametrize(
    "row",
    [
        chat(("user", "u"), ("assistant", "a")),
        chat(("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "u"), ("assistant", "a")),
        chat(("assistant", "Welcome."), ("user", "u"), ("assistant", "a"), ("user", "and?")),
        {"messages": [USER, CALL, TOOL, TOOL, ANSWER]},
        {"prompt": "", "completion": "once upon"},
        {"prompt": [USER], "completion": [ANSWER]},
    ],
)
def test_valid_conversations_pass(row: dict[str, Any]) -> None:
    check_conversation(row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (chat(("user", "u")), "there is no message of the assistant"),
        ({"prompt": "<image>\nWhat is it?", "completion": "A dog."}, "the prompt refers to an image, audio or video by <image>"),
        (chat(("user", "u"), ("assistant", " \n")), r"message 2 \(assistant\) is empty"),
        (chat(("user", None), ("assistant", "a")), r"message 1 \(user\) is empty"),
        (chat(("user", "u"), ("user", "v"), ("assistant", "a")), "messages 1 and 2 both have the role user"),
        (chat(("user", "u"), ("assistant", "a"), ("assistant", "b")), "messages 2 and 3 both have the role assistant"),
        (chat(("user", "u"), ("system", "s"), ("assistant", "a")), "a system message that is not the first"),
        (chat(("system", "s"), ("system", "t"), ("assistant", "a")), "a system message that is not the first"),
        (chat(("user", "u"), ("tool", "t"), ("assistant", "a")), "message 2 is a tool result without a tool call before it"),
        (chat(("user", "u\0"), ("assistant", "a")), "a NUL or half a surrogate pair"),
        (chat(("user", "u"), ("assistant", "\ud83d")), "a NUL or half a surrogate pair"),
        ({"prompt": "p", "completion": "  "}, "an empty completion"),
    ],
)
def test_invalid_conversations_are_rejected_with_the_reason(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_conversation(row)


def test_only_line_breaks_before_answers_are_stripped() -> None:
    row = chat(("user", "\nu"), ("assistant", "\n\r\n a\n"))
    assert strip_answer_newlines(row) and [turn["content"] for turn in row["messages"]] == ["\nu", " a\n"]
    assert not strip_answer_newlines(row) and not strip_answer_newlines({"prompt": "p", "completion": "\nc"})
