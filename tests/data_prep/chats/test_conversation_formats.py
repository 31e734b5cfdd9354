"""Four conversation formats are converted into one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from overtone.data_prep.chats.conversation_formats import SHAPES, detect_shape, list_unread_keys, normalise_row
from overtone.finetune.errors import UserError

ASKED, ANSWERED = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("messages", {"messages": [ASKED, ANSWERED], "id": 7}, {"messages": [ASKED, ANSWERED]}),
    ("messages", {"messages": json.dumps([ASKED, ANSWERED]), "tools": json.dumps(TOOLS)}, {"messages": [ASKED, ANSWERED], "tools": TOOLS}),
    ("messages", {"messages": [ASKED, {**ANSWERED, "name": None}], "tools": []}, {"messages": [ASKED, ANSWERED]}),
    (
        "sharegpt",
        {"system": "Be brief.", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]},
        {"messages": [SYSTEM, ASKED, ANSWERED]},
    ),
    (
        "sharegpt",
        {
            "conversations": [
                {"from": "human", "value": "Why?"},
                {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Oslo"}}'},
                {"from": "observation", "value": "rain"},
                {"from": "gpt", "value": "Because."},
            ]
        },
        {
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}],
                },
                {"role": "tool", "content": "rain"},
                ANSWERED,
            ]
        },
    ),
    ("alpaca", {"instruction": "Why?", "input": "", "output": "Because."}, {"messages": [ASKED, ANSWERED]}),
    (
        "alpaca",
        {"instruction": "Sum up.", "input": "A text.", "output": "Because.", "system": "Be brief.", "history": [["Why?", "Because."]]},
        {"messages": [SYSTEM, ASKED, ANSWERED, {"role": "user", "content": "Sum up.\n\nA text."}, ANSWERED]},
    ),
    ("completion", {"prompt": "1, 2, ", "completion": "3"}, {"prompt": "1, 2, ", "completion": "3"}),
    ("completion", {"prompt": [ASKED], "completion": [ANSWERED]}, {"prompt": [ASKED], "completion": [ANSWERED]}),
    (
        "messages",
        {
            "messages": [
                ASKED,
                {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
            ],
            "functions": [{"name": "weather", "parameters": {}}],
        },
        {
            "messages": [
                ASKED,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}],
                },
            ],
            "tools": TOOLS,
        },
    ),
    ("messages", {"messages": [ASKED, {**ANSWERED, "weight": 1}]}, {"messages": [ASKED, ANSWERED]}),
    ("messages", {"messages": [ASKED, {**ANSWERED, "weight": 0}]}, {"messages": [ASKED, {**ANSWERED, "weight": 0}]}),
    ("messages", {"messages": [ASKED, ANSWERED], "question": "Why?", "answer": "x"}, {"messages": [ASKED, ANSWERED]}),
    (
        "dolly",
        {"instruction": "Sum up.", "context": "A text.", "response": "Because.", "category": "summary"},
        {"messages": [{"role": "user", "content": "Sum up.\n\nA text."}, ANSWERED]},
    ),
    ("question", {"question": "Why?", "answer": "Because."}, {"messages": [ASKED, ANSWERED]}),
    ("preference", {"prompt": "Why?", "chosen": "Because.", "rejected": "No."}, {"messages": [ASKED, ANSWERED]}),
    (
        "preference",
        {"system": "Be brief.", "question": "Why?", "chosen": "Because.", "rejected": "No."},
        {"messages": [SYSTEM, ASKED, ANSWERED]},
    ),
    ("preference", {"prompt": "Why?", "chosen": [ASKED, ANSWERED], "rejected": [ASKED]}, {"messages": [ASKED, ANSWERED]}),
    ("preference", {"prompt": [ASKED], "chosen": [ANSWERED], "rejected": [ANSWERED]}, {"prompt": [ASKED], "completion": [ANSWERED]}),
    (
        "preference",
        {"system": "Be brief.", "prompt": [ASKED], "chosen": [ANSWERED], "rejected": [ANSWERED]},
        {"prompt": [SYSTEM, ASKED], "completion": [ANSWERED]},
    ),
    ("preference", {"chosen": "\n\nHuman: Why?\n\nAssistant: Because.", "rejected": "\n\nHuman: Why?"}, {"messages": [ASKED, ANSWERED]}),
    (
        "chatgpt",
        {
            "title": "A chat",
            "current_node": "c",
            "mapping": {
                "root": {"parent": None, "message": None, "children": ["a"]},
                "a": {"parent": "root", "message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["Why?"]}}},
                "b": {"parent": "a", "message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["No."]}}},
                "c": {
                    "parent": "a",
                    "message": {"author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["Because."]}},
                },
            },
        },
        {"messages": [ASKED, ANSWERED]},
    ),
]


@pytest.mark.parametrize(("shape", "row", "expected"), CASES)
def test_each_format_is_recognized_by_its_keys_and_converted(shape: str, row: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {case[0] for case in CASES} == set(SHAPES)
    assert detect_shape(row) == shape
    assert normalise_row(row, shape) == expected
    again = normalise_row(expected, detect_shape(expected))
    assert again == expected, "what is normal stays as it is"


def test_further_keys_of_a_message_are_kept() -> None:
    turn = {"role": "assistant", "content": "No.", "reasoning_content": "Think.", "tool_calls": json.dumps([{"function": {"name": "f"}}])}
    (found,) = normalise_row({"messages": [turn]}, "messages")["messages"]
    assert found == {**turn, "tool_calls": [{"function": {"name": "f"}}]}


def test_rows_of_no_format_or_of_several_are_reported_with_their_keys() -> None:
    with pytest.raises(
        UserError,
        match=r"^no known shape \(messages: messages; .*\), so name its columns with --columns, or give --raw .*; its keys are text, id$",
    ):
        detect_shape({"text": "x", "id": 1})
    with pytest.raises(UserError, match="it has images, which a text model cannot use"):
        normalise_row({"messages": [ASKED, ANSWERED], "images": ["a.png"]}, "messages")
    for bad in ({"prompt": "a", "completion": "b", "label": "False"}, {"messages": [ASKED, ANSWERED], "kto_tag": False}):
        with pytest.raises(UserError, match=r"its (label|kto_tag) is false: an answer that must not be learned"):
            normalise_row(bad, detect_shape(bad))
    for good in ({"prompt": "a", "completion": "b", "label": True}, {"prompt": "a", "completion": "b", "label": 0}):
        assert normalise_row(good, "completion") == {"prompt": "a", "completion": "b"}
    assert normalise_row({"messages": [ASKED, ANSWERED], "images": [], "audio": None}, "messages") == {"messages": [ASKED, ANSWERED]}
    both = {"messages": [ASKED], "prompt": "a", "completion": "b"}
    with pytest.raises(UserError, match=r"^more than one known shape \(messages, completion\), so choose one with --shape"):
        detect_shape(both)
    assert normalise_row(both, "completion") == {"prompt": "a", "completion": "b"}


@pytest.mark.parametrize(
    ("shape", "row", "message"),
    [
        ("messages", {"text": 1}, "no messages, which shape messages has; its keys are text"),
        ("messages", {"messages": "hello"}, "messages is a text that is not JSON"),
        ("messages", {"messages": []}, "messages must be a list of messages"),
        ("messages", {"messages": ["hi"]}, r"messages\[0\] must be an object"),
        ("messages", {"messages": [{"role": "narrator", "content": "x"}]}, r"messages\[0\] has the role 'narrator'; known are user, human"),
        ("messages", {"messages": [{**ANSWERED, "weight": 0.5}]}, r"messages\[0\].weight must be 0 .not learned. or 1, found 0.5"),
        ("preference", {"chosen": "Because.", "rejected": "No."}, "chosen is a text without its question"),
        ("sharegpt", {"conversations": [{"value": "x"}]}, r"conversations\[0\] has the role None"),
        ("sharegpt", {"conversations": [{"from": "function_call", "value": "{}"}]}, "must hold objects with a function's name"),
        ("alpaca", {"instruction": 3, "output": "x"}, "instruction must be text, found 3"),
        ("messages", {"messages": [ASKED], "tools": "{"}, "tools is a text that is not JSON"),
    ],
)
def test_a_malformed_row_is_rejected_with_the_reason(shape: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        normalise_row(row, shape)


def test_unused_keys_with_a_value_are_named() -> None:
    row = {
        "instruction": "a",
        "output": "b",
        "input": "",
        "history": [],
        "topic": "c",
        "note": "",
        "score": 0,
        "text": None,
        "messages": [],
    }
    read = {name: shape.keys | shape.also for name, shape in SHAPES.items()}
    assert list_unread_keys(row, read["alpaca"]) == ["topic", "score", "messages"]
    assert list_unread_keys({"prompt": "a", "completion": "b", "tools": [], "system": "s"}, read["completion"]) == ["system"]


def test_an_empty_list_of_tool_calls_is_dropped() -> None:
    for empty in ([], "[]", "", None):
        assert normalise_row({"messages": [ASKED, {**ANSWERED, "tool_calls": empty}]}, "messages") == {"messages": [ASKED, ANSWERED]}
