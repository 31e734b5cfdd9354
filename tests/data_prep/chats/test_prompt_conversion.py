"""Rows for training by rewards: each form of a prompt, the keys that rewards read, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from overtone.data_prep.chats.prompt_conversion import can_be_matched, check_prompt, convert_prompt
from overtone.finetune.errors import UserError

ASKED = {"role": "user", "content": "Why?"}
NORMAL = {"prompt": [ASKED], "answer": "Because."}
FORMS: dict[str, dict[str, Any]] = {
    "prompt, messages": {"prompt": [ASKED]},
    "prompt, text": {"prompt": "Why?"},
    "prompt, messages in a table": {"prompt": json.dumps([ASKED])},
    "messages": {"messages": [ASKED]},
    "ShareGPT": {"conversations": [{"from": "human", "value": "Why?"}]},
    "question, as GSM8K": {"question": "Why?"},
    "Alpaca": {"instruction": "Why?", "input": ""},
}


@pytest.mark.parametrize("row", FORMS.values(), ids=[*FORMS])
def test_each_form_of_a_prompt_has_one_normal_form(row: dict[str, Any]) -> None:
    given = {**row, "answer": "Because.", "id": 7}
    found = convert_prompt(given, ["answer"])
    check_prompt(found.row)
    assert found.row == NORMAL and given.keys() - found.read == {"id"}, "what is not read is counted"


def test_reward_keys_stay_as_they_are() -> None:
    given = {"prompt": "Why?", "answer": 0, "tests": [{"in": "1"}], "schema": '{"type": "integer"}', "label": False, "completion": "No."}
    found = convert_prompt(given, ["answer", "tests", "schema"])
    assert found.row == {"prompt": [ASKED], "answer": 0, "tests": [{"in": "1"}], "schema": {"type": "integer"}}
    assert given.keys() - found.read == {"label", "completion"}
    assert convert_prompt({"prompt": "Why?"}, []).row == {"prompt": [ASKED]}
    assert convert_prompt({"prompt": "Why?", "question": "Which?"}, ["question"]).row == {"prompt": [ASKED], "question": "Which?"}


@pytest.mark.parametrize("text", ["[{'a': 1}] Sort this.", '[{"a": 1}]', "[", '[{"role": "user"}]'])
def test_a_prompt_that_looks_like_json_stays_text(text: str) -> None:
    assert convert_prompt({"prompt": text, "answer": "a"}, ["answer"]).row["prompt"] == [{"role": "user", "content": text}]


def test_a_key_that_columns_names_is_read_before_others() -> None:
    whole = {"messages": [ASKED, {"role": "assistant", "content": "So."}], "question": "Which?", "prompt": "Why?", "answer": "Because."}
    found = convert_prompt(whole, ["answer"], {"prompt"})
    assert found.row == NORMAL and whole.keys() - found.read == {"messages", "question"}


@pytest.mark.parametrize(
    ("answer", "expected"), [("4 ", True), ("a\n", True), (4, True), (0.5, True), ("2 + 2\n#### 4", False), (True, False), (["a"], False)]
)
def test_a_number_or_one_line_can_be_matched(answer: Any, expected: bool) -> None:
    assert can_be_matched(answer) == expected


def test_system_messages_tools_and_earlier_turns_are_part_of_the_prompt() -> None:
    tools, turns = [{"type": "function", "function": {"name": "look"}}], [ASKED, {"role": "assistant", "content": "So."}, ASKED]
    found = convert_prompt({"messages": turns, "system": "Be brief.", "tools": json.dumps(tools), "answer": "a"}, ["answer"]).row
    check_prompt(found)
    assert found == {"prompt": [{"role": "system", "content": "Be brief."}, *turns], "tools": tools, "answer": "a"}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"prompt": "Why?"},
            r"^no answer and no schema, which the rewards need \(--reward-keys\); its keys are prompt; name another column",
        ),
        ({"prompt": "Why?", "answer": "", "schema": {}}, "^no answer, which the rewards need"),
        ({"answer": "a", "schema": {}}, "^none of conversations, messages, instruction, prompt, question, which hold a prompt"),
        ({"prompt": "", "answer": "a", "schema": {}}, "^none of conversations"),
        ({"prompt": 3, "answer": "a", "schema": {}}, "messages must be a list of messages"),
        ({"prompt": "Why?", "answer": "a", "schema": "{"}, "schema is a text that is not JSON"),
        (
            {"prompt": [ASKED, {"role": "assistant", "content": "a"}], "answer": "a", "schema": {}},
            "^the last message of its prompt is an answer of the assistant; a prompt ends with what is to be answered$",
        ),
        (
            {"messages": [ASKED, {"role": "assistant", "content": "a"}], "prompt": "Why?", "answer": "a", "schema": {}},
            "^the last message of its messages is an .* is to be answered; to read prompt instead, give --columns prompt=prompt$",
        ),
        ({"prompt": "Why?", "answer": "a", "schema": {}, "image": "a.png"}, "it has image, which a text model cannot use"),
    ],
)
def test_rows_that_cannot_be_rewarded_are_refused(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        convert_prompt(row, ["answer", "schema"])


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": [{"role": "user", "content": " "}], "answer": "a"}, r"message 1 \(user\) is empty"),
        ({"prompt": [ASKED, ASKED], "answer": "a"}, "messages 1 and 2 both have the role user"),
        ({"prompt": [{"role": "user", "content": "<image> what?"}], "answer": "a"}, "message 1 refers to an image"),
        ({"prompt": [ASKED], "answer": "\0"}, "a NUL or half a surrogate pair"),
        ({"prompt": [ASKED], "answer": float("nan")}, "the number nan, which JSON does not have"),
    ],
)
def test_prompts_that_must_not_be_trained_on_are_refused(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        check_prompt(row)
