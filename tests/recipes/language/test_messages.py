"""Rows of every shape, and what is said of those that have none."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from finetune.errors import UserError
from finetune.storage.strict_json import loads_object
from recipes.language.chat_labels import tokenise
from recipes.language.messages import is_plain, messages_of, tools_of
from tests.finetune.hostile import JSON_PIECES, broken
from tests.recipes.llm_sft.families import tokenizer

CASES = 400
ASKED, SAID = {"role": "user", "content": "Oslo?"}, {"role": "assistant", "content": "Cold."}


def test_three_shapes() -> None:
    assert messages_of({"messages": [ASKED, SAID]}) == ([ASKED, SAID], 0)
    assert messages_of({"prompt": [ASKED], "completion": [SAID]}) == ([ASKED, SAID], 1)
    assert is_plain({"prompt": "Oslo?", "completion": ""}) and not is_plain({"prompt": [ASKED], "completion": [SAID]})
    assert not is_plain({"messages": [ASKED], "prompt": "", "completion": ""}), "a chat that a tool left its source beside"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({}, "expected .*found no key"),
        ({"text": "Oslo?"}, "found text: 'Oslo.'"),
        ({"messages": []}, "found messages: "),
        ({"messages": "Oslo?"}, "found messages: 'Oslo.'"),
        ({"prompt": [ASKED]}, "found prompt: "),
        ({"prompt": [ASKED], "completion": "Cold."}, "both text or both such lists; found prompt: .*, completion: 'Cold.'"),
        ({"messages": ["Oslo?"]}, r"messages\[0\] must be an object with a role, found 'Oslo\?'"),
        ({"messages": [ASKED, {"content": "Cold."}]}, r"messages\[1\] must be an object with a role"),
        ({"messages": [ASKED, {"role": "assistant", "content": 3}]}, r"messages\[1\].content must be text, or a list of parts, found 3"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": "x"}]}, r"messages\[1\].tool_calls must be a list of calls, found 'x'"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": ["x"]}]}, r"messages\[1\].tool_calls must hold objects"),
    ],
)
def test_what_is_no_chat(row: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        messages_of(row)


def test_empty_keys_are_dropped() -> None:
    """transformers 5 does it too; 4 would write `None` into the text."""
    assert messages_of({"messages": [{**ASKED, "tool_calls": None, "name": None}]})[0] == [ASKED]
    assert messages_of({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]})[0] == [
        {"role": "assistant", "tool_calls": []}
    ]


def test_arguments_in_a_string_are_read() -> None:
    def arguments(text: Any, wrapped: bool = True) -> Any:
        function = {"name": "weather", "arguments": text}
        [message], _ = messages_of({"messages": [{"role": "assistant", "tool_calls": [{"function": function} if wrapped else function]}]})
        [call] = message["tool_calls"]
        return call["function"]["arguments"] if wrapped else call["arguments"]

    assert arguments('{"city": "Oslo"}') == arguments('{"city": "Oslo"}', False) == arguments({"city": "Oslo"}) == {"city": "Oslo"}
    with pytest.raises(UserError, match=r"messages\[0\]: the arguments of tool call weather are not JSON"):
        arguments("Oslo")


def test_the_row_stays_as_it_was() -> None:
    call = {"function": {"name": "weather", "arguments": "{}"}}
    row = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    messages_of(row)
    assert row == {
        "messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]}]
    }


def test_tools() -> None:
    assert tools_of({"tools": [{"name": "weather"}]}) == [{"name": "weather"}]
    assert tools_of({}) is tools_of({"tools": None}) is tools_of({"tools": []}) is None
    for wrong in ("weather", ["weather"], {"name": "weather"}):
        with pytest.raises(UserError, match="tools must be a list of JSON schemas"):
            tools_of({"tools": wrong})


def test_arguments_of_a_call_that_no_file_can_hold_are_refused() -> None:
    for arguments in ("[" * 100_000, '{"a": "\\ud800"}', '{"a": NaN}', '{"a": 1, "a": 2}'):
        call = {"function": {"name": "f", "arguments": arguments}}
        with pytest.raises(UserError, match=r"messages\[0\]: the arguments of tool call f are not JSON \("):
            messages_of({"messages": [{"role": "assistant", "tool_calls": [call]}]})


def test_whatever_stands_in_a_row_it_is_refused_or_becomes_tokens() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": [1]}'}}]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    sound: list[dict[str, Any]] = [
        {"messages": [ASKED, call, {"role": "tool", "content": "t"}, SAID], "tools": tools},
        {"messages": [ASKED, SAID]},
        {"prompt": "Oslo?", "completion": "Cold."},
    ]
    ends: Counter[str] = Counter()
    for number in range(CASES):
        chance = random.Random(number)
        raw = broken(chance, json.dumps(chance.choice(sound)).encode(), JSON_PIECES)
        try:
            ids, supervised = tokenise(loads_object(raw), tokenizer("qwen3"), "assistant")
        except UserError:
            ends["refused"] += 1
        else:
            ends["kept"] += 1
            assert len(ids) == len(supervised) and any(supervised), f"case {number}"
    assert min(ends["refused"], ends["kept"]) > CASES / 20, ends


def test_the_first_message_to_learn_follows_the_whole_prompt() -> None:
    assert messages_of({"prompt": [ASKED, SAID, ASKED], "completion": [SAID]}) == ([ASKED, SAID, ASKED, SAID], 3)
