"""Converts rows for training by rewards to {prompt, tools} with the keys that the rewards read, such as `answer` and `schema`.

The prompt is everything before the answer that is to be made. `conversation_formats` reads it; texts become messages.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from pydantic import JsonValue

from overtone.data_prep.chats import conversation_checks
from overtone.data_prep.chats.chat_messages import ChatRow
from overtone.data_prep.chats.conversation_formats import (
    EVERYWHERE,
    LABELS,
    ShapeError,
    decode_json,
    format_keys,
    is_message_list,
    normalise_row,
    read_text,
)
from overtone.data_prep.chats.preference_conversion import BEFORE, PROMPTS, ConvertedRow
from overtone.finetune.errors import UserError

PROMPT_ROWS = "prompts"
"""Value of `--rows`."""
ANSWER = "answer"
DEFAULT_REWARD_KEYS = (ANSWER,)
SCHEMA = "schema"
"""The reward key whose value is an object, which tables store as JSON in a text."""


def convert_prompt(given: ChatRow, reward_keys: Sequence[str], named: Container[str] = ()) -> ConvertedRow:
    """Return the row with `prompt` as messages, and with these keys as they are. `named`: keys that --columns names, which are read before
    others. Raises `UserError` for one without a prompt, or without a value of one of the keys."""
    holders = sorted((key for key in PROMPTS if given.get(key) and key not in reward_keys), key=lambda key: key not in named)
    keys = (*holders[:1],)
    if not keys:
        raise ShapeError(
            f"none of {', '.join(PROMPTS)}, which hold a prompt, so name its column with --columns; its keys are {format_keys(given)}"
        )
    if missing := [key for key in reward_keys if given.get(key) in (None, "")]:
        raise UserError(
            f"no {' and no '.join(missing)}, which the rewards need (--reward-keys); its keys are {format_keys(given)}; name another "
            "column with --columns"
        )
    if keys == ("instruction",):
        keys = ("instruction", "input")
        prompt: JsonValue = "\n\n".join(text for key in keys if (text := read_text(given, key)))
    else:
        prompt = given[keys[0]]
    is_stored = keys[0] in BEFORE or (isinstance(prompt, str) and is_message_list(prompt))  # as JSON in a table
    turns = decode_json(prompt, keys[0]) if is_stored else prompt
    messages = [{"role": "user", "content": turns}] if isinstance(turns, str) else turns
    shared = {key: value for key, value in given.items() if key not in (*PROMPTS, *reward_keys, *LABELS, "completion")}
    row = normalise_row({**shared, "messages": messages}, "messages")
    row = {"prompt": row.pop("messages"), **row}
    if row["prompt"][-1]["role"] == "assistant":
        other = next((f"; to read {key} instead, give --columns {key}={key}" for key in holders[1:] if keys[0] not in named), "")
        raise UserError(
            f"the last message of its {keys[0]} is an answer of the assistant; a prompt ends with what is to be answered{other}"
        )
    found = {key: decode_json(given[key], key) if key == SCHEMA else given[key] for key in reward_keys}
    return ConvertedRow({**row, **found}, PROMPT_ROWS, EVERYWHERE.union(keys, reward_keys))


def can_be_matched(answer: JsonValue) -> bool:
    """Return whether a generated answer can be expected to equal this one: a number, or a line of text. A worked solution is neither."""
    is_line = isinstance(answer, str) and not re.search(r"[\r\n]", answer.strip())
    return is_line or (isinstance(answer, int | float) and not isinstance(answer, bool))


def check_prompt(row: ChatRow) -> None:
    """Raises `UserError` with the reason why a converted row must not be trained on."""
    conversation_checks.check_storable(row)
    conversation_checks.check_turns(row["prompt"])
