"""The shown path through the tree of a ChatGPT conversation."""

from __future__ import annotations

from typing import Any

import pytest

from overtone.data_prep.chats.chatgpt_export import read_shown_turns
from overtone.finetune.errors import UserError


def node(parent: str | None, role: str = "", text: str = "", *, children: tuple[str, ...] = (), **message: Any) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [text]}
    return {
        "parent": parent,
        "children": [*children],
        "message": {"author": {"role": role}, "content": content, **message} if role else None,
    }


def test_hidden_and_empty_messages_are_skipped_and_the_shown_variant_is_read() -> None:
    tree = {
        "root": node(None, children=("s",)),
        "s": node("root", "system", "", children=("h",)),
        "h": node("s", "user", "About me.", metadata={"is_visually_hidden_from_conversation": True}, children=("a", "b")),
        "a": node("h", "user", "Why?", children=("c",)),
        "b": node("h", "user", "Why, then?", children=("d",)),
        "c": node("a", "assistant", "Because."),
        "d": node("b", "assistant", "So."),
    }
    shown = [("user", "Why?"), ("assistant", "Because.")]
    assert [(turn["role"], turn["content"]) for turn in read_shown_turns(tree, "c")] == shown
    assert [turn["content"] for turn in read_shown_turns(tree, None)] == ["Why, then?", "So."], "the last variant"


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "mapping must be an object"),
        ({"a": node("b", "user", "x"), "b": node("a", "assistant", "y")}, "damaged"),
        ({"a": node("gone", "user", "x")}, "damaged"),
        ({"a": node(None, "assistant", "search('x')", recipient="browser")}, "ChatGPT's own tools"),
        ({"a": node(None, "user", content={"content_type": "multimodal_text", "parts": [{}]})}, "'multimodal_text', which is not text"),
    ],
)
def test_what_the_export_does_not_hold_is_refused(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_shown_turns(tree, "a")
