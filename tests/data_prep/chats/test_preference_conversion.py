"""Tests of `overtone.data_prep.chats.preference_conversion`: each published shape of pairs and labels, and what is refused."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from overtone.data_prep.chats.preference_conversion import check_sides, convert_labelled, convert_pair
from overtone.finetune.errors import UserError

ASKED, GOOD, BAD = (
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Because."},
    {"role": "assistant", "content": "No."},
)
NORMAL = {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]}
SHAREGPT_GOOD, SHAREGPT_BAD = ({"from": "gpt", "value": text} for text in ("Because.", "No."))
SHAREGPT = {"from": "human", "value": "Why?"}
PAIRS: dict[str, dict[str, Any]] = {
    "TRL, conversational, explicit": NORMAL,
    "TRL, conversational, implicit": {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
    "TRL, texts": {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
    "texts after a question": {"question": "Why?", "chosen": "Because.", "rejected": "No."},
    "UltraFeedback": {
        **{"prompt": "Why?", "prompt_id": "7", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        **{"messages": [ASKED, GOOD], "score_chosen": 8.5, "score_rejected": 4.0},
    },
    "ShareGPT, paired": {"conversations": [SHAREGPT], "chosen": SHAREGPT_GOOD, "rejected": SHAREGPT_BAD},
    "Alpaca, paired": {"instruction": "Why?", "input": "", "chosen": "Because.", "rejected": "No."},
    "hh-rlhf": {"chosen": "\n\nHuman: Why?\n\nAssistant: Because.", "rejected": "\n\nHuman: Why?\n\nAssistant: No."},
}


@pytest.mark.parametrize("row", PAIRS.values(), ids=[*PAIRS])
def test_each_shape_of_a_pair_has_one_normal_form(row: dict[str, Any]) -> None:
    found = convert_pair(row)
    check_sides(found.row)
    assert found.row == NORMAL
    assert row.keys() - found.read <= {"prompt_id"}


def test_system_messages_tools_and_earlier_turns_are_part_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    row = {"system": "Be brief.", "tools": tools, "chosen": [ASKED, GOOD, ASKED, GOOD], "rejected": [ASKED, GOOD, ASKED, BAD]}
    found = convert_pair(row).row
    assert found["prompt"] == [{"role": "system", "content": "Be brief."}, ASKED, GOOD, ASKED] and found["tools"] == tools
    assert convert_pair({**NORMAL, "system": "Be brief."}).row["prompt"] == [{"role": "system", "content": "Be brief."}, ASKED]


@pytest.mark.parametrize("text", ['{"answer": 3}', "{x} a", '{"role": "admin"}', "[1, 2]", "{", '[{"role": "user", "content": "a"}, 3]'])
def test_an_answer_that_looks_like_json_stays_text(text: str) -> None:
    found = convert_pair({"prompt": "Why?", "chosen": text, "rejected": "No."}).row
    assert found == {**NORMAL, "chosen": [{"role": "assistant", "content": text}]}
    assert convert_pair({"prompt": "Why?", "chosen": "Because.", "rejected": text}).row["rejected"][0]["content"] == text


@pytest.mark.parametrize("answers", [(GOOD, BAD), (SHAREGPT_GOOD, SHAREGPT_BAD), ([SHAREGPT_GOOD], [SHAREGPT_BAD])])
def test_messages_of_tables_are_decoded(answers: tuple[Any, Any]) -> None:
    good, bad = (json.dumps(answer) for answer in answers)
    assert convert_pair({"prompt": "Why?", "chosen": good, "rejected": bad}).row == NORMAL


WHOLE = {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}


@pytest.mark.parametrize(
    ("row", "unread"),
    [
        ({"instruction": "Why?", "prompt": "How?", "chosen": "Because.", "rejected": "No."}, {"prompt"}),
        ({"instruction": "Why?", "prompt": "Why?", "chosen": "Because.", "rejected": "No."}, set()),
        ({"conversations": [SHAREGPT], "messages": [{**ASKED, "content": "How?"}], "chosen": GOOD, "rejected": BAD}, {"messages"}),
        ({"prompt": "Why?", "question": "How?", "input": "Now.", "chosen": "Because.", "rejected": "No."}, {"question", "input"}),
        ({**WHOLE, "prompt": [{"role": "system", "content": "Be brief."}]}, {"prompt"}),
        ({**WHOLE, "messages": [ASKED, GOOD]}, set()),
        ({**WHOLE, "messages": [ASKED, BAD]}, {"messages"}),
        ({**NORMAL, "score_chosen": 4}, {"score_chosen"}),
        ({**NORMAL, "score_chosen": "high", "score_rejected": "low"}, {"score_chosen", "score_rejected"}),
    ],
)
def test_keys_that_add_nothing_are_not_counted_as_read(row: dict[str, Any], unread: set[str]) -> None:
    assert row.keys() - convert_pair(row).read == unread


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rejected": [GOOD]}, "chosen and rejected are equal, so the pair has no preference"),
        ({"rejected": [{**GOOD, "content": " Because.\n"}]}, "differ only in spaces, or in keys that chat templates drop"),
        ({"rejected": [{**GOOD, "score": 3}]}, "differ only in spaces, or in keys that chat templates drop"),
        ({"rejected": [GOOD, ASKED, BAD]}, "one of chosen and rejected is the beginning of the other"),
        ({"chosen": [{**ASKED, "content": "How?"}, GOOD], "prompt": None, "rejected": [ASKED, BAD]}, "differ before their answers"),
        ({"score_chosen": 5.0, "score_rejected": 5.0}, "its score_chosen and score_rejected are equal, so the pair has no preference"),
        ({"score_chosen": "4", "score_rejected": "4.0"}, "its score_chosen and score_rejected are equal, so the pair has no preference"),
        ({"score_chosen": "9", "score_rejected": " 10"}, "the wrong way around: the rejected answer has more"),
        ({"score_chosen": Decimal(3), "score_rejected": 5}, "the wrong way around: the rejected answer has more"),
        ({"chosen_score": 4, "rejected_score": 5}, "the wrong way around: the rejected answer has more"),
        ({"prompt": None, "instruction": {"a": 1}, "chosen": "3", "rejected": "4"}, "instruction must be text"),
        ({"rejected": 5}, "^rejected must be a list of messages, found 5"),
        ({"rejected": [{"role": "judge", "content": "No."}]}, r"^rejected\[0\] has the role 'judge'"),
        ({"rejected": None}, "no rejected, which a pair has"),
        ({"rejected": [{**BAD, "content": " "}]}, r"rejected: message 2 \(assistant\) is empty"),
    ],
)
def test_a_pair_without_a_preference_is_refused(changes: dict[str, Any], problem: str) -> None:
    given = {key: value for key, value in {**NORMAL, **changes}.items() if value is not None}
    with pytest.raises(UserError, match=problem):
        check_sides(convert_pair(given).row)


@pytest.mark.parametrize("scores", [("10", "9"), (5, "3.5"), (float("nan"), 2.0), ("N/A", "5")])
def test_a_pair_with_a_better_chosen_answer_or_without_scores_is_kept(scores: tuple[Any, Any]) -> None:
    assert convert_pair({**NORMAL, "chosen_rating": scores[0], "rejected_rating": scores[1]}).row == NORMAL


LABELLED: dict[str, dict[str, Any]] = {
    "TRL, conversational": {"prompt": [ASKED], "completion": [BAD], "label": False},
    "LLaMA-Factory": {"messages": [ASKED, BAD], "kto_tag": False},
    "ShareGPT": {"conversations": [SHAREGPT, {"from": "gpt", "value": "No."}], "label": "False"},
    "Alpaca": {"instruction": "Why?", "input": "", "output": "No.", "kto_tag": False},
    "both labels": {"messages": [ASKED, BAD], "label": "FALSE", "kto_tag": False},
}


@pytest.mark.parametrize("row", LABELLED.values(), ids=[*LABELLED])
def test_each_shape_of_a_labelled_answer_has_one_normal_form(row: dict[str, Any]) -> None:
    found = convert_labelled(row)
    check_sides(found.row)
    assert found.row == {"prompt": [ASKED], "completion": [BAD], "label": False} and row.keys() <= found.read


def test_texts_without_a_template_stay_texts() -> None:
    row = {"prompt": "Why? ", "completion": "Because.", "label": True}
    assert convert_labelled(row).row == row


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": [ASKED], "completion": [GOOD]}, "no label or kto_tag, which says whether the answer is a good one"),
        ({"prompt": [ASKED], "completion": [GOOD], "label": 1}, "its label must be true or false, found 1"),
        ({"prompt": [ASKED], "completion": [GOOD], "label": 1.0}, "its label must be true or false, found 1.0"),
        ({"prompt": [ASKED], "completion": [GOOD], "kto_tag": "yes"}, "its kto_tag must be true or false, found 'yes'"),
        ({"prompt": [ASKED], "completion": [GOOD], "label": [True]}, r"its label must be true or false, found \[True\]"),
        ({"prompt": [ASKED], "completion": [GOOD], "label": True, "kto_tag": "false"}, "its label and kto_tag contradict each other"),
        ({"prompt": [ASKED], "completion": [GOOD], "label": "", "kto_tag": None}, "no label or kto_tag"),
        ({**NORMAL, "label": True}, "it is a pair of answers; use --rows pairs, or two rows with completion and label"),
        ({"messages": [GOOD], "label": True}, "it has no question before its answer"),
        ({"messages": [ASKED, GOOD, ASKED], "label": True}, "its last message is not an answer of the assistant"),
        ({"messages": [ASKED, {**GOOD, "content": ""}], "label": True}, "is empty"),
    ],
)
def test_an_answer_without_a_label_is_refused(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        check_sides(convert_labelled(row).row)
