"""Converts rows for preference training: pairs to {prompt, chosen, rejected}, and answers with a label to {prompt, completion, label}.

`conversation_formats` reads each side of a pair as a conversation. The prompt is what both have in common, up to the first answer that
differs; texts become messages. Also LLaMA-Factory's pairs are read, whose `chosen` and `rejected` are single messages after
`conversations`, or texts after `instruction`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pydantic import JsonValue

from overtone.data_prep.chats import conversation_checks
from overtone.data_prep.chats.chat_messages import ChatRow
from overtone.data_prep.chats.conversation_formats import (
    EVERYWHERE,
    LABELS,
    SCORES,
    SHAPES,
    ShapeError,
    decode_json,
    detect_shape,
    format_keys,
    normalise_row,
    read_text,
)
from overtone.finetune.errors import UserError

SIDES = ("chosen", "rejected")
BEFORE = ("conversations", "messages")
"""Keys with the conversation before a pair of answers."""
TRUE, FALSE = (True, "true", "True", "TRUE"), (False, "false", "False", "FALSE")
"""Labels as JSON and as tables of text have them."""
PAIR_KEYS = EVERYWHERE | {*SIDES, "prompt", "question", *BEFORE, "instruction", "input", *(key for keys in SCORES for key in keys)}


class ConvertedRow(NamedTuple):
    """A row in the form in which it is written."""

    row: ChatRow
    shape: str
    """Name of its original format."""
    read: frozenset[str]
    """Keys that were read."""


def convert_pair(given: ChatRow) -> ConvertedRow:
    """Return the row with `prompt`, `chosen` and `rejected` as messages. Raises `UserError` for one that has no preference."""
    if missing := [name for name in SIDES if not given.get(name)]:
        raise ShapeError(f"no {' and no '.join(missing)}, which a pair has; its keys are {format_keys(given)}")
    _check_scores(given)
    one, other = (_read_side(given, name) for name in SIDES)
    turns = [side.get("messages") or [*side["prompt"], *side["completion"]] for side in (one, other)]
    contents = [[_strip_turn(turn) for turn in side] for side in turns]
    if contents[0] == contents[1]:
        same = "are equal" if turns[0] == turns[1] else "differ only in spaces, or in keys that chat templates drop"
        raise UserError(f"chosen and rejected {same}, so the pair has no preference")
    shared = next((at for at, (first, second) in enumerate(zip(*contents, strict=False)) if first != second), min(map(len, contents)))
    if shared == min(map(len, contents)):
        raise UserError("one of chosen and rejected is the beginning of the other, so it has no answer to compare")
    if not shared or any(side[shared]["role"] != "assistant" for side in turns):
        raise UserError("chosen and rejected differ before their answers")
    row = {"prompt": turns[0][:shared], "chosen": turns[0][shared:], "rejected": turns[1][shared:]}
    return ConvertedRow({**row, **({"tools": one["tools"]} if "tools" in one else {})}, "preference", PAIR_KEYS)


def _check_scores(row: ChatRow) -> None:
    """Raise `UserError` unless the chosen answer has the higher score, if both have one."""
    for keys in SCORES:
        good, bad = (row.get(key) for key in keys)
        if isinstance(good, int | float) and isinstance(bad, int | float) and not good > bad:
            order = "equal, so the pair has no preference" if good == bad else "the wrong way around: the rejected answer has more"
            raise UserError(f"its {keys[0]} and {keys[1]} are {order}")


def _read_side(row: ChatRow, name: str) -> ChatRow:
    """Return the conversation with this side's answer, as `normalise_row` does."""
    answer: JsonValue = row[name]
    own = {key: value for key, value in row.items() if key not in (*SIDES, *BEFORE, "instruction", "input")}
    before = next((row[key] for key in BEFORE if row.get(key)), None)
    if before is not None:
        found = decode_json(before, "conversations")
        own["prompt"] = found if isinstance(found, list) else before
    elif row.get("instruction"):
        own["prompt"] = "\n\n".join(text for key in ("instruction", "input") if (text := read_text(row, key)))
    decoded = decode_json(answer, name) if isinstance(answer, str) and answer.lstrip().startswith("{") else answer
    try:
        return normalise_row({**own, "chosen": [decoded] if isinstance(decoded, dict) else answer, "rejected": row[SIDES[1]]}, "preference")
    except UserError as error:  # whose place is a part of `chosen`, as which both sides are read
        place = str(error)
        raise UserError(name + place.removeprefix("chosen") if place.startswith("chosen") else place) from None


def _strip_turn(turn: ChatRow) -> tuple[object, ...]:
    """Return what most chat templates write of a message: no spaces around its text, and none of its other keys."""
    return turn["role"], (turn.get("content") or "").strip(), turn.get("tool_calls"), turn.get("reasoning_content")


def convert_labelled(given: ChatRow) -> ConvertedRow:
    """Return the row with `prompt`, `completion` and `label`. Raises `UserError` for one without a label."""
    key = next((key for key in LABELS if given.get(key) is not None), None)
    if key is None:
        raise ShapeError(f"no {' or '.join(LABELS)}, which says whether the answer is a good one; its keys are {format_keys(given)}")
    if given[key] not in (*TRUE, *FALSE) or isinstance(given[key], int) != isinstance(given[key], bool):
        raise UserError(f"its {key} must be true or false, found {given[key]!r:.40}")
    unlabelled = {name: value for name, value in given.items() if name not in LABELS}
    shape = detect_shape(unlabelled)
    row = normalise_row(unlabelled, shape)
    if "messages" in row:
        turns = row.pop("messages")
        if turns[-1]["role"] != "assistant":
            raise UserError("its last message is not an answer of the assistant, which the label would be about")
        row |= {"prompt": turns[:-1], "completion": turns[-1:]}
    return ConvertedRow({**row, "label": given[key] in TRUE}, shape, SHAPES[shape].keys | SHAPES[shape].also | {key})


def check_sides(row: ChatRow) -> None:
    """Raise `UserError` with the reason why a converted row must not be trained on."""
    shared = {key: value for key, value in row.items() if key not in (*SIDES, "label")}
    for name in SIDES if "chosen" in row else ("completion",):
        try:
            conversation_checks.check_conversation({**shared, "completion": row[name]})
        except UserError as error:
            raise UserError(f"{name}: {error}" if "chosen" in row else str(error)) from None


CONVERTERS: dict[str, Callable[[ChatRow], ConvertedRow]] = {"pairs": convert_pair, "labels": convert_labelled}
"""Value of `--rows` → the function that converts a row."""
