"""Chat formats (messages, ShareGPT, Alpaca, Dolly, question/answer, preference pairs, ChatGPT's export, prompt/completion): detection, and
conversion to {messages, tools} or {prompt, completion}."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from pydantic import JsonValue

from overtone.data_prep.chats.chat_messages import ChatRow, check_row_marks, read_message
from overtone.data_prep.chats.chatgpt_export import read_shown_turns
from overtone.finetune.errors import UserError
from overtone.finetune.storage.strict_json import loads

ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "bot"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function", "function_response", "tool_response"), "tool"),
    "system": "system",
    "developer": "developer",
}
"""Role name in the input → role name in chat templates."""
NAMES = {"from": "role", "value": "content"}
"""ShareGPT key → standard key of a message."""
SHOWN_KEYS = 12
TRANSCRIPT_TURN = re.compile(r"\n\n(Human|Assistant): ?")
"""Beginning of each turn in rows of hh-rlhf, which hold a whole conversation as one text."""


class ShapeError(UserError):
    """The keys of a row fit no known shape, several shapes, or not the requested shape."""


class Shape(NamedTuple):
    """One chat format."""

    keys: frozenset[str]
    """Required keys."""
    also: frozenset[str]
    """Optional keys that are read too; all other keys are dropped."""
    read: Callable[[ChatRow], ChatRow]
    yields: bool = False
    """True if a row that also has the keys of another shape is read in that other shape."""


def detect_shape(row: ChatRow) -> str:
    """Return the name of a row's shape. Raises `ShapeError` naming its keys if there is none, or more than one."""
    fitting = [name for name, shape in SHAPES.items() if shape.keys <= row.keys()]
    found = [name for name in fitting if not SHAPES[name].yields] or fitting
    if len(found) == 1:
        return found[0]
    known = "; ".join(f"{name}: {' and '.join(sorted(shape.keys))}" for name, shape in SHAPES.items())
    what = (
        f"more than one known shape ({', '.join(found)}), so choose one with --shape"
        if found
        else f"no known shape ({known}), so name its columns with --columns"
    )
    if not found and isinstance(row.get("text"), str):
        what += ", or give --raw to learn all of its text"
    raise ShapeError(f"{what}; its keys are {format_keys(row)}")


def normalise_row(row: ChatRow, shape: str) -> ChatRow:
    """Convert a row to {messages, tools} or {prompt, completion}. Raises `UserError` if it does not fit its shape."""
    if media := sorted(key for key in MEDIA & row.keys() if row[key] not in (None, "", [], {})):
        raise UserError(f"it has {' and '.join(media)}, which a text model cannot use: it would learn to invent what it shows")
    check_row_marks(row)
    false = (False, "false", "False", "FALSE") if shape == "completion" else (False,)  # tables such as CSV hold text
    if bad := next((key for key in LABELS if isinstance(row.get(key), bool | str) and row[key] in false), None):
        raise UserError(f"its {bad} is false: an answer that must not be learned, of a dataset for preference training (--rows labels)")
    if missing := SHAPES[shape].keys - row.keys():
        raise ShapeError(f"no {' and no '.join(sorted(missing))}, which shape {shape} has; its keys are {format_keys(row)}")
    found = SHAPES[shape].read(row)
    tools = _parse_tools(row.get("tools")) or [{"type": "function", "function": each} for each in _parse_tools(row.get("functions"))]
    return {**found, "tools": tools} if tools else found


def list_unread_keys(row: ChatRow, read: frozenset[str]) -> list[str]:
    """Return the non-empty keys of a row that are not among those that were `read`."""
    return [key for key, value in row.items() if key not in read and value not in (None, "")]


def decode_json(value: JsonValue, what: str) -> JsonValue:
    """Decode a value that may be JSON in a string, as tables store nested values. Empty values become None."""
    if not isinstance(value, str) or not value.strip():
        return value if isinstance(value, int | float) else value or None
    try:
        return loads(value)
    except ValueError as error:
        raise UserError(f"{what} is a text that is not JSON ({error})") from None


def format_keys(row: ChatRow) -> str:
    """Return the keys of a row, for messages."""
    more = [f"and {len(row) - SHOWN_KEYS} more"] if len(row) > SHOWN_KEYS else []
    return ", ".join([*(f"{key:.40}" for key in list(row)[:SHOWN_KEYS]), *more]) or "none"


def _parse_tools(value: JsonValue) -> list[ChatRow]:
    """Return the function schemas: a list of objects, or JSON in a string for all of them or for each."""
    found = decode_json(value, "tools") or []
    decoded = [decode_json(tool, f"tools[{number}]") for number, tool in enumerate(found)] if isinstance(found, list) else [found]
    tools = [tool for tool in decoded if isinstance(tool, dict)]
    if not isinstance(found, list) or len(tools) < len(decoded):
        raise UserError(f"tools must be a list of objects, found {value!r:.60}")
    return tools


def _convert_messages(row: ChatRow) -> ChatRow:
    return {"messages": [*_read_system_message(row), *_parse_turns(row["messages"], "messages")]}


def _convert_sharegpt(row: ChatRow) -> ChatRow:
    return {"messages": [*_read_system_message(row), *_parse_turns(row["conversations"], "conversations")]}


def _convert_alpaca(row: ChatRow) -> ChatRow:
    question = "\n\n".join(part for part in (read_text(row, "instruction"), read_text(row, "input")) if part)
    turns = _make_exchange(question, read_text(row, "output"))
    return {"messages": [*_read_system_message(row), *_convert_history(row.get("history")), *turns]}


def _convert_dolly(row: ChatRow) -> ChatRow:
    question = "\n\n".join(part for part in (read_text(row, "instruction"), read_text(row, "context")) if part)
    return {"messages": [*_read_system_message(row), *_make_exchange(question, read_text(row, "response"))]}


def _convert_question(row: ChatRow) -> ChatRow:
    return {"messages": [*_read_system_message(row), *_make_exchange(read_text(row, "question"), read_text(row, "answer"))]}


def _make_exchange(question: str, answer: str) -> list[ChatRow]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _convert_preference(row: ChatRow) -> ChatRow:
    """Return the conversation with the chosen answer. `chosen` is the whole conversation, its last messages after a separate `prompt`, or a
    text after `prompt`."""
    prompt, chosen = next((row[key] for key in ("prompt", "question") if row.get(key)), None), row["chosen"]
    if isinstance(chosen, str) and not is_message_list(chosen):
        if prompt is None:
            return {"messages": _parse_transcript(chosen)}
        before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) and not is_message_list(prompt) else None
        turns = before or _parse_turns(prompt, "prompt")
        return {"messages": [*_read_system_message(row), *turns, {"role": "assistant", "content": chosen}]}
    answer = _parse_turns(chosen, "chosen")
    if answer[0]["role"] != "assistant" or prompt is None:
        return {"messages": [*_read_system_message(row), *answer]}
    if isinstance(prompt, str) and not is_message_list(prompt):
        return {"messages": [*_read_system_message(row), {"role": "user", "content": prompt}, *answer]}
    return {"prompt": [*_read_system_message(row), *_parse_turns(prompt, "prompt")], "completion": answer}


def _parse_transcript(text: str) -> list[ChatRow]:
    """Return the turns of a text in which each begins with `Human:` or `Assistant:` after an empty line."""
    before, *parts = TRANSCRIPT_TURN.split(text)
    if before.strip() or not parts:
        raise UserError("chosen is a text without its question: neither a key `prompt` nor turns that begin with Human: and Assistant:")
    roles = {"Human": "user", "Assistant": "assistant"}
    return [{"role": roles[role], "content": content} for role, content in zip(parts[::2], parts[1::2], strict=True)]


def _convert_chatgpt(row: ChatRow) -> ChatRow:
    turns = read_shown_turns(decode_json(row["mapping"], "mapping"), row.get("current_node"))
    return {"messages": _parse_turns(turns, "the shown messages of mapping")}


def _convert_history(value: JsonValue) -> list[ChatRow]:
    found = decode_json(value, "history") or []
    pairs = [pair for pair in found if isinstance(pair, list) and len(pair) == 2] if isinstance(found, list) else []
    if not isinstance(found, list) or len(pairs) < len(found):
        raise UserError(f"history must be a list of [question, answer], found {value!r:.60}")
    turns: list[JsonValue] = [
        {"role": role, "content": content} for pair in pairs for role, content in zip(("user", "assistant"), pair, strict=True)
    ]
    return _parse_turns(turns, "history") if turns else []


def _read_system_message(row: ChatRow) -> list[ChatRow]:
    """Return the system message from a separate `system` key, if any."""
    prompt = read_text(row, "system")
    return [{"role": "system", "content": prompt}] if prompt.strip() else []


def read_text(row: ChatRow, key: str) -> str:
    """Return a text of the row, empty if it has none. Raises `UserError` for anything else."""
    value = row.get(key)
    if not isinstance(value, str | None):
        raise UserError(f"{key} must be text, found {value!r:.40}")
    return value or ""


def _convert_completion(row: ChatRow) -> ChatRow:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str) and not (is_message_list(prompt) and is_message_list(completion)):
        return {"prompt": prompt, "completion": completion}
    return {"prompt": _parse_turns(prompt, "prompt"), "completion": _parse_turns(completion, "completion")}


def is_message_list(text: str) -> bool:
    """Return whether a string is a JSON list of messages, as tables store it, instead of plain text."""
    try:
        found = loads(text) if text.lstrip()[:1] == "[" else None
    except ValueError:
        return False
    return isinstance(found, list) and bool(found) and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in found)


def _parse_turns(value: JsonValue, what: str) -> list[ChatRow]:
    turns = decode_json(value, what)
    if not isinstance(turns, list) or not turns:
        raise UserError(f"{what} must be a list of messages, found {value!r:.60}")
    return [_parse_turn(turn, f"{what}[{number}]") for number, turn in enumerate(turns)]


def _parse_turn(turn: JsonValue, what: str) -> ChatRow:
    """Return one message with `role` and `content`, from those names or from ShareGPT's `from` and `value`, as `read_message` returns
    it."""
    if not isinstance(turn, dict):
        raise UserError(f"{what} must be an object, found {turn!r:.60}")
    names = {key: key if NAMES.get(key, key) in turn else NAMES[key] for key in turn}  # a ShareGPT key stays if the standard one is there
    message: ChatRow = {names[key]: value for key, value in turn.items() if value is not None}
    role = message.get("role")
    if role == "function_call":
        calls = _wrap_calls(message.get("content"), what)
        return read_message({**message, "role": "assistant", "content": "", "tool_calls": calls}, what)
    if not isinstance(role, str) or role.lower() not in ROLES:
        raise UserError(f"{what} has the role {role!r:.40}; known are {', '.join(ROLES)}, function_call")
    for key in ("tool_calls", "function_call"):  # tables store them as JSON in a string
        if (value := decode_json(message.pop(key, None), f"{what}.{key}")) is not None:
            message[key] = value
    return read_message({**message, "role": ROLES[role.lower()]}, what)


def _wrap_calls(value: JsonValue, what: str) -> list[JsonValue]:
    """Return the tool calls in the standard format, from the content of a message with ShareGPT's role `function_call`."""
    found = decode_json(value, what)
    given = found if isinstance(found, list) else [found]
    calls = [call for call in given if isinstance(call, dict)]
    if len(calls) < len(given) or not calls:
        raise UserError(f"{what} is a function_call without a call")
    return [call if "function" in call else {"type": "function", "function": call} for call in calls]


EVERYWHERE = frozenset({"tools", "functions", "system"})
MEDIA = frozenset({"image", "images", "audio", "audios", "video", "videos"})
"""Keys of rows with pictures, sound or films beside their text."""
MESSAGE_LISTS = frozenset({"messages", "conversations", "prompt", "completion", "chosen", "rejected"})
"""Keys whose values can be lists of messages."""
LABELS = ("label", "kto_tag")
"""Keys that say whether the answer is a good one; numbers in them are classes of other datasets."""
SCORES = (("score_chosen", "score_rejected"), ("chosen_score", "rejected_score"), ("chosen_rating", "rejected_rating"))
"""Keys with the scores of both answers of a pair."""
SHAPES = {
    "messages": Shape(frozenset({"messages"}), EVERYWHERE, _convert_messages),
    "sharegpt": Shape(frozenset({"conversations"}), EVERYWHERE, _convert_sharegpt),
    "alpaca": Shape(frozenset({"instruction", "output"}), EVERYWHERE | {"input", "history"}, _convert_alpaca),
    "completion": Shape(frozenset({"prompt", "completion"}), frozenset({"tools", "functions"}), _convert_completion),
    "dolly": Shape(frozenset({"instruction", "response"}), EVERYWHERE | {"context"}, _convert_dolly, yields=True),
    "question": Shape(frozenset({"question", "answer"}), EVERYWHERE, _convert_question, yields=True),
    "preference": Shape(frozenset({"chosen", "rejected"}), EVERYWHERE | {"prompt", "question"}, _convert_preference, yields=True),
    "chatgpt": Shape(frozenset({"mapping"}), frozenset({"current_node", "title", "id", "conversation_id"}), _convert_chatgpt, yields=True),
}
"""Chat formats by name."""
