"""Tests of `overtone.data_prep.chats.chat_messages`: the accepted forms of a row and its messages, what is learned, and the errors for
others."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from overtone.data_prep.chats.chat_messages import MessageError, is_plain_text, list_unread_keys, read_message, read_messages, read_tools
from overtone.finetune.errors import UserError
from overtone.finetune.storage.strict_json import loads_object
from overtone.recipes.language.tokenization.sft_tokenization import tokenize_row
from tests.finetune.hostile import JSON_PIECES, broken
from tests.recipes.llm_sft.families import tokenizer

CASES = 400
ASKED, SAID = {"role": "user", "content": "Oslo?"}, {"role": "assistant", "content": "Cold."}


def test_three_forms_are_accepted() -> None:
    assert read_messages({"messages": [ASKED, SAID]}) == ([ASKED, SAID], 0)
    assert read_messages({"prompt": [ASKED], "completion": [SAID]}) == ([ASKED, SAID], 1)
    assert is_plain_text({"prompt": "Oslo?", "completion": ""}) and not is_plain_text({"prompt": [ASKED], "completion": [SAID]})
    assert not is_plain_text({"messages": [ASKED], "prompt": "", "completion": ""}), (
        "messages take precedence, because a tool may keep the source of a chat beside it"
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "expected .*found no key"),
        ({"text": "Oslo?", "audio": "a.flac"}, "the row is a clip of speech; use --recipe voice_clone"),
        ({"text": "Oslo?"}, "found text$"),
        ({"messages": []}, "found messages: "),
        ({"messages": "Oslo?"}, "found messages: 'Oslo.'"),
        ({"prompt": [ASKED]}, "found prompt: "),
        (
            {"prompt": [ASKED], "completion": "Cold."},
            "both such lists, or .text. and .ends.; found prompt: .*, completion: 'Cold.'",
        ),
        ({"messages": ["Oslo?"]}, r"messages\[0\] must be an object with a role, found 'Oslo\?'"),
        ({"messages": [ASKED, {"content": "Cold."}]}, r"messages\[1\] must be an object with a role"),
        ({"messages": [ASKED, {"role": "assistant", "content": 3}]}, r"messages\[1\].content must be text, or a list of parts, found 3"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": "x"}]}, r"messages\[1\].tool_calls must be a list of calls, found 'x'"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": ["x"]}]}, r"messages\[1\].tool_calls must hold objects"),
        ({"messages": [ASKED, {"role": "assistant", "content": None}]}, r"messages\[1\].content is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, r"messages\[0\].content\[0\] must be a part .*'image_url'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "box": 1}]}]}, r"content\[0\] must be .*found 'box'"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, r"content\[0\] must be .*found 'a'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, r"content\[0\] must be .*found 'text'"),
        ({"messages": [ASKED, SAID], "loss_mask": [0, 1]}, "its loss_mask says what is learned, which is not supported"),
        ({"messages": [ASKED, SAID], "mask": "assistant"}, "its mask says what is learned"),
    ],
)
def test_a_malformed_row_is_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_messages(row)


def test_null_fields_are_dropped() -> None:
    """transformers 5 does the same; 4 would write `None` into the text."""
    assert read_messages({"messages": [{**ASKED, "tool_calls": None, "name": None}]})[0] == [ASKED]
    assert read_messages({"messages": [{**SAID, "tool_calls": []}, {"role": "tool", "content": None}]})[0] == [
        SAID,
        {"role": "tool", "content": ""},
    ]


def test_arguments_given_as_a_string_are_parsed() -> None:
    def arguments(text: Any, wrapped: bool = True) -> Any:
        function = {"name": "weather", "arguments": text}
        [message], _ = read_messages({"messages": [{"role": "assistant", "tool_calls": [{"function": function} if wrapped else function]}]})
        [call] = message["tool_calls"]
        return call["function"]["arguments"] if wrapped else call["arguments"]

    assert arguments('{"city": "Oslo"}') == arguments('{"city": "Oslo"}', False) == arguments({"city": "Oslo"}) == {"city": "Oslo"}
    with pytest.raises(UserError, match=r"messages\[0\].tool_calls have the arguments of weather, which are not JSON"):
        arguments("Oslo")


def test_the_given_row_is_not_changed() -> None:
    call = {"function": {"name": "weather", "arguments": "{}"}}
    row = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    read_messages(row)
    assert row == {
        "messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]}]
    }


def test_tools_must_be_a_list_of_schemas() -> None:
    assert read_tools({"tools": [{"name": "weather"}]}) == [{"name": "weather"}]
    assert read_tools({}) is read_tools({"tools": None}) is read_tools({"tools": []}) is None
    for wrong in ("weather", ["weather"], {"name": "weather"}):
        with pytest.raises(UserError, match="tools must be a list of JSON schemas"):
            read_tools({"tools": wrong})


def test_arguments_that_cannot_be_saved_as_json_are_refused() -> None:
    for arguments in ("[" * 100_000, '{"a": "\\ud800"}', '{"a": NaN}', '{"a": 1, "a": 2}'):
        call = {"function": {"name": "f", "arguments": arguments}}
        with pytest.raises(UserError, match=r"messages\[0\].tool_calls have the arguments of f, which are not JSON \("):
            read_messages({"messages": [{"role": "assistant", "tool_calls": [call]}]})


def test_any_row_is_tokenized_or_refused() -> None:
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
            ids, supervised = tokenize_row(loads_object(raw), tokenizer("qwen3"), "assistant")
        except UserError:
            ends["refused"] += 1
        else:
            ends["kept"] += 1
            assert len(ids) == len(supervised) and any(supervised), f"case {number}"
    assert min(ends["refused"], ends["kept"]) > CASES / 20, ends


def test_the_first_message_to_learn_follows_the_whole_prompt() -> None:
    assert read_messages({"prompt": [ASKED, SAID, ASKED], "completion": [SAID]}) == ([ASKED, SAID, ASKED, SAID], 3)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "It is ", "image_url": None}, {"type": "text", "text": "Oslo."}]
    assert read_message({"role": "assistant", "content": parts}, "m") == {"role": "assistant", "content": "It is Oslo."}
    assert read_message({"role": "user", "content": []}, "m") == {"role": "user", "content": ""}


def test_a_call_in_the_old_format_is_among_the_tool_calls() -> None:
    call = {"name": "f", "arguments": '{"x": 1}'}
    assert read_message({"role": "assistant", "content": None, "function_call": call}, "m") == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
    }


@pytest.mark.parametrize(
    ("mark", "learned"),
    [
        *[({key: value}, bool(value)) for key in ("weight", "loss_mask", "step_loss_mask", "loss_scale") for value in (0, 1, 0.0, 1.0)],
        *[({key: value}, value) for key in ("train", "training", "trainable", "loss") for value in (True, False)],
        ({"masked": True}, False),
        ({"masked": False}, True),
        ({"train": False, "masked": True, "weight": 0}, False),
        ({"weight": None}, True),
        ({}, True),
    ],
)
def test_marks_of_known_trainers_say_whether_an_answer_is_learned(mark: dict[str, Any], learned: bool) -> None:
    expected = SAID if learned else {**SAID, "weight": 0}
    assert read_message({**SAID, **mark}, "m") == expected
    ids, supervised = tokenize_row({"messages": [ASKED, {**SAID, **mark}, ASKED, SAID]}, tokenizer("chatml"), "assistant")
    texts = tokenizer("chatml").decode([id for id, wanted in zip(ids, supervised, strict=True) if wanted])
    assert texts == "Cold.<|im_end|>" * (1 + learned)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({**SAID, "weight": 0.5}, "m.weight must be 0 .not learned. or 1, found 0.5"),
        ({**SAID, "weight": True}, "m.weight must be 0"),
        ({**SAID, "loss": "no"}, "m.loss must be 0 .*found 'no'"),
        ({**SAID, "train": 2}, "m.train must be 0 .*found 2"),
        ({**SAID, "mask": 1}, "m.mask is not supported: some datasets mark with it what is learned, others what is not"),
        ({**SAID, "train_detail": []}, "m.train_detail is not supported: ranges of characters"),
        ({**SAID, "train": True, "loss": False}, "m has train and loss, which contradict each other"),
        ({**ASKED, "train": True}, "m is a message of the user that is marked as learned; only answers of the assistant are"),
    ],
)
def test_a_mark_that_is_not_understood_is_refused(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(MessageError, match=problem):
        read_message(message, "m")


def test_marks_that_change_nothing_are_dropped_from_other_messages() -> None:
    assert read_message({**ASKED, "train": False}, "m") == read_message({**ASKED, "weight": 1}, "m") == ASKED


def test_keys_that_only_templates_read_are_listed() -> None:
    assert (
        list_unread_keys([{**ASKED, "mood": "sad", "name": "Anna"}, {**SAID, "mood": 1, "reasoning_content": "", "weight": 0}])
        == ["mood"] * 2
    )
