"""Converts rows for preference training: pairs to {prompt, chosen, rejected}, and answers with a label to {prompt, completion, label}.

`conversation_formats` reads each side of a pair as a conversation. The prompt is what both have in common, up to the first answer that
differs; texts become messages. Also LLaMA-Factory's pairs are read, whose `chosen` and `rejected` are single messages after
`conversations`, or texts after `instruction`.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
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
from overtone.finetune.storage.strict_json import loads

SIDES = ("chosen", "rejected")
BEFORE = ("conversations", "messages")
"""Keys with the conversation before a pair of answers."""
PROMPTS = (*BEFORE, "instruction", "prompt", "question")
"""Keys with what precedes the answers, of which the first is read; `instruction` with `input`."""
CONTENTS = frozenset({"content", "value", "tool_calls"})
"""Keys with the content of a message."""
MEANINGS = {**dict.fromkeys(("true", "True", "TRUE"), True), **dict.fromkeys(("false", "False", "FALSE"), False)}
"""Label in a table of text → its meaning."""


class ConvertedRow(NamedTuple):
    """A row in the form in which it is written."""

    row: ChatRow
    shape: str
    """Name of its original format."""
    read: frozenset[str]
    """Keys that were read, and those that only repeat what was read."""


class PairSide(NamedTuple):
    """The conversation with one of the two answers."""

    turns: list[ChatRow]
    tools: list[ChatRow]
    read: frozenset[str]
    """Keys with what precedes the answer, as far as they were read."""


def convert_pair(given: ChatRow) -> ConvertedRow:
    """Return the row with `prompt`, `chosen` and `rejected` as messages. Raises `UserError` for one that has no preference."""
    if missing := [name for name in SIDES if not given.get(name)]:
        raise ShapeError(f"no {' and no '.join(missing)}, which a pair has; its keys are {format_keys(given)}")
    compared = _check_scores(given)
    one, other = (_read_side(given, name) for name in SIDES)
    turns = [one.turns, other.turns]
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
    questions = [turn.get("content") for turn in row["prompt"]]
    repeated = {
        key for key in PROMPTS if given.get(key) in (*questions, given["chosen"])
    }  # as in UltraFeedback, beside whole conversations
    read = EVERYWHERE.union(SIDES, compared, repeated, one.read, other.read)
    return ConvertedRow({**row, **({"tools": one.tools} if one.tools else {})}, "preference", read)


def _check_scores(row: ChatRow) -> set[str]:
    """Return the keys of the scores that were compared. Raises `UserError` unless the chosen answer has the higher score, if both have
    one."""
    compared = set[str]()
    for keys in SCORES:
        good, bad = (_read_score(row.get(key)) for key in keys)
        if good is None or bad is None:
            continue
        if not good > bad:
            order = "equal, so the pair has no preference" if good == bad else "the wrong way around: the rejected answer has more"
            raise UserError(f"its {keys[0]} and {keys[1]} are {order}")
        compared.update(keys)
    return compared


def _read_score(value: object) -> int | float | Decimal | None:
    """Return a score, also from the text of a table; None for what is not a number."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float | Decimal) and value == value else None  # NaN is the missing value of some tables


def _read_side(row: ChatRow, name: str) -> PairSide:
    """Return the conversation with this side's answer, as `normalise_row` does."""
    own = {key: value for key, value in row.items() if key not in (*SIDES, *PROMPTS, "input")}
    keys: tuple[str, ...] = next(((key,) for key in PROMPTS if row.get(key)), ())
    if keys and keys[0] in BEFORE:
        before = row[keys[0]]
        found = decode_json(before, keys[0])
        own["prompt"] = found if isinstance(found, list) else before
    elif keys == ("instruction",):
        keys = ("instruction", "input")
        own["prompt"] = "\n\n".join(text for key in keys if (text := read_text(row, key)))
    elif keys:
        own["prompt"] = row[keys[0]]
    answer = _decode_answer(row[name])
    try:
        side = normalise_row({**own, "chosen": answer, "rejected": row[SIDES[1]]}, "preference")
    except UserError as error:  # whose place is a part of `chosen`, as which both sides are read
        place = str(error)
        raise UserError(name + place.removeprefix("chosen") if place.startswith("chosen") else place) from None
    turns = side.get("messages") or [*side["prompt"], *side["completion"]]
    is_whole = isinstance(answer, list) and turns[-len(answer)]["role"] != "assistant"  # a conversation that needs nothing before it
    return PairSide(turns, side.get("tools", []), frozenset(() if is_whole else keys))


def _decode_answer(answer: JsonValue) -> JsonValue:
    """Return a list of messages if the answer is one, a single message, or JSON of either, as tables store them. Any other text stays as it
    is, also if it is JSON."""
    if not isinstance(answer, str):
        return [answer] if isinstance(answer, dict) else answer
    try:
        found = loads(answer) if answer.lstrip()[:1] in ("{", "[") else None
    except ValueError:
        return answer
    turns = found if isinstance(found, list) else [found]
    messages: list[JsonValue] = [
        turn for turn in turns if isinstance(turn, dict) and turn.keys() & {"role", "from"} and turn.keys() & CONTENTS
    ]
    return messages if messages and len(messages) == len(turns) else answer


def _strip_turn(turn: ChatRow) -> tuple[object, ...]:
    """Return what most chat templates write of a message: no spaces around its text, and none of its other keys."""
    return turn["role"], (turn.get("content") or "").strip(), turn.get("tool_calls"), turn.get("reasoning_content")


def convert_labelled(given: ChatRow) -> ConvertedRow:
    """Return the row with `prompt`, `completion` and `label`. Raises `UserError` for one without a label."""
    labels = {key: _read_label(given[key], key) for key in LABELS if given.get(key) not in (None, "")}
    if not labels:
        raise ShapeError(f"no {' or '.join(LABELS)}, which says whether the answer is a good one; its keys are {format_keys(given)}")
    label, *others = {*labels.values()}
    if others:
        raise UserError(f"its {' and '.join(labels)} contradict each other; remove one of them")
    unlabelled = {name: value for name, value in given.items() if name not in LABELS}
    shape = detect_shape(unlabelled)
    if shape == "preference":
        raise UserError("it is a pair of answers; use --rows pairs, or two rows with completion and label")
    row = normalise_row(unlabelled, shape)
    if "messages" in row:
        turns = row.pop("messages")
        if turns[-1]["role"] != "assistant":
            raise UserError("its last message is not an answer of the assistant, which the label would be about")
        row |= {"prompt": turns[:-1], "completion": turns[-1:]}
    if row["prompt"] == []:
        raise UserError("it has no question before its answer")
    return ConvertedRow({**row, "label": label}, shape, SHAPES[shape].keys.union(SHAPES[shape].also, labels))


def _read_label(value: JsonValue, key: str) -> bool:
    label = MEANINGS.get(value) if isinstance(value, str) else value
    if not isinstance(label, bool):
        raise UserError(f"its {key} must be true or false, found {value!r:.40}")
    return label


def check_sides(row: ChatRow) -> None:
    """Raises `UserError` with the reason why a converted row must not be trained on."""
    shared = {key: value for key, value in row.items() if key not in (*SIDES, "label")}
    for name in SIDES if "chosen" in row else ("completion",):
        try:
            conversation_checks.check_conversation({**shared, "completion": row[name]})
        except UserError as error:
            raise UserError(f"{name}: {error}" if "chosen" in row else str(error)) from None


CONVERTERS: dict[str, Callable[[ChatRow], ConvertedRow]] = {"pairs": convert_pair, "labels": convert_labelled}
"""Value of `--rows` → the function that converts a row."""
