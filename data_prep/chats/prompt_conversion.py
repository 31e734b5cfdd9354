"""Converts rows for training by rewards to {prompt, tools} with the keys that the rewards read, such as `answer` and `schema`.

The prompt is everything before the answer that is to be made. `conversation_formats` reads it; texts become messages.
"""

from __future__ import annotations

from collections.abc import Sequence

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
DEFAULT_REWARD_KEYS = ("answer",)
SCHEMA = "schema"
"""The reward key whose value is an object, which tables store as JSON in a text."""


def convert_prompt(given: ChatRow, reward_keys: Sequence[str]) -> ConvertedRow:
    """Return the row with `prompt` as messages, and with these keys as they are. Raises `UserError` for one without a prompt, or without a
    value of one of the keys."""
    keys: tuple[str, ...] = next(((key,) for key in PROMPTS if given.get(key) and key not in reward_keys), ())
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
        raise UserError("its prompt ends with an answer of the assistant; a prompt ends with what is to be answered")
    found = {key: decode_json(given[key], key) if key == SCHEMA else given[key] for key in reward_keys}
    return ConvertedRow({**row, **found}, PROMPT_ROWS, EVERYWHERE.union(keys, reward_keys))


def check_prompt(row: ChatRow) -> None:
    """Raises `UserError` with the reason why a converted row must not be trained on."""
    conversation_checks.check_storable(row)
    conversation_checks.check_turns(row["prompt"])
