"""Reads the messages of a chat in OpenAI's format: the one reader for `overtone text`, training, generation and serving.

A message that was read has no null fields, its content is one text, the arguments of its tool calls are objects, and of all marks that say
whether an answer is learned it has `"weight": 0` or none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import JsonValue

from overtone.finetune.errors import UserError
from overtone.finetune.storage import strict_json

ChatRow = dict[str, Any]
"""A row of chats, or an object in one: JSON that is not validated yet, or as the readers return it."""
Message = dict[str, Any]
ACCEPTED_FORMS = (
    '{"messages": [{"role": …, "content": …}, …]}, or "prompt" and "completion", both text or both such lists, or "text" and "ends"'
)
MESSAGE_KEYS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking", "weight", "function_call"}
)
"""Keys of a message that are read; chat templates can read others."""
LEARNED = ("weight", "train", "training", "trainable", "loss", "loss_mask", "step_loss_mask", "loss_scale", "loss_weight")
"""Keys with 1 or true for a message that is learned, 0 or false for one that is not: `weight` of the fine-tuning APIs of OpenAI and
Mistral, `train` and `training` of Axolotl, `trainable` of Tinker, `loss` of ms-swift and XTuner, `loss_mask` of VeOmni, `step_loss_mask` of
slime, `loss_scale` and `loss_weight` as factors of the loss."""
UNLEARNED = ("masked",)
"""Keys with true for a message that is not learned: torchtune."""
UNCLEAR = {
    "mask": "some datasets mark with it what is learned, others what is not; use weight: 0 or 1",
    "train_detail": "ranges of characters cannot be learned separately; split the message, or remove the key",
    "training_detail": "ranges of characters cannot be learned separately; split the message, or remove the key",
}
"""Key that says what is learned, but cannot be followed → why, and what to do."""


ROW_MARKS = ("loss_mask", "mask", "mask_history")
"""Keys of a row that say which of its messages are learned."""


class MessageError(UserError):
    """A part of a message that cannot be read. `place` says which one, as in `messages[2].content`."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place} {problem}")
        self.place = place


def is_plain_text(row: ChatRow) -> bool:
    """Return whether a row is a text and its continuation, which need no chat template."""
    return "messages" not in row and isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str)


def is_raw_text(row: ChatRow) -> bool:
    """Return whether a row is a text of which everything is learned, as `overtone text --raw` writes it. A key `text` alone is also in rows
    of classifiers and of chats that somebody has rendered, in which not all is to be learned."""
    return isinstance(row.get("text"), str) and {"text", "ends"} <= row.keys() <= {"text", "ends", "source"}


def read_messages(row: ChatRow) -> tuple[list[Message], int]:
    """Return all messages of a row, and the index of the first that may be learned. Raises `UserError`, which names a malformed message."""
    check_row_marks(row)
    parts: list[Any] = [row["messages"]] if "messages" in row else [row.get("prompt"), row.get("completion")]
    if {"audio", "audio_codes"} & row.keys():
        raise UserError(f"the row is a clip of speech; use --recipe voice_clone for speech, or give rows with {ACCEPTED_FORMS}")
    if not all(isinstance(part, list) and part for part in parts):
        # Values of other keys are not shown: they differ in each row, and the mistake is the same.
        shown = [f"{key}: {value!r:.30}" if key in ("messages", "prompt", "completion") else key for key, value in row.items()]
        raise UserError(f"expected {ACCEPTED_FORMS}; found {', '.join(shown) or 'no key'}")
    whole = [message for part in parts for message in part]
    messages = [read_message(message, f"messages[{number}]") for number, message in enumerate(whole)]
    return messages, len(parts[0]) if len(parts) == 2 else 0


def check_row_marks(row: ChatRow) -> None:
    """Raises `UserError` for a row that says which of its messages are learned. It may only say that the user's are not."""
    for key in ROW_MARKS:
        value = row.get(key)
        if value and not (isinstance(value, str) and value.lower() in ("user", "human")):  # NeMo's `mask`: the role that is not learned
            raise UserError(f"its {key} says what is learned, which is not supported; use weight: 0 or 1 in each message, or remove {key}")


def read_tools(row: ChatRow) -> list[ChatRow] | None:
    """Return the JSON schemas of functions, for the template; None if the row has none. Raises `UserError` for anything else."""
    tools = row.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise UserError(f"tools must be a list of JSON schemas, found {tools!r:.60}")
    return tools or None


def read_message(message: JsonValue, place: str) -> Message:
    """Read one message into the form that the module's docstring describes. `place` names it in errors. Raises `MessageError`.

    transformers 5 drops null fields; transformers 4 would pass them to the template.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise MessageError(place, f"must be an object with a role, found {message!r:.60}")
    full = {key: value for key, value in message.items() if value is not None}
    _read_marks(full, place)
    _read_calls(full, place)
    content = full.get("content")
    if isinstance(content, list):
        full["content"] = "".join(_read_part(part, f"{place}.content[{number}]") for number, part in enumerate(content))
    elif not isinstance(content, str | None):
        raise MessageError(f"{place}.content", f"must be text, or a list of parts, found {content!r:.60}")
    elif content is None and full["role"] == "tool":  # a function without a result
        full["content"] = ""
    elif content is None and not full.get("tool_calls"):
        raise MessageError(f"{place}.content", "is missing")
    return full


def list_unread_keys(messages: Sequence[Message]) -> list[str]:
    """Return the keys of messages that only a chat template can read, each once for each message that has it."""
    return [key for message in messages for key in message if key not in MESSAGE_KEYS]


def list_unread_row_keys(row: ChatRow, read: Collection[str]) -> list[str]:
    """Return the keys of a row that have a value and are neither in `read` nor its source, where `overtone text` writes its place."""
    return [key for key, value in row.items() if key not in read and key != "source" and value not in (None, "", [])]


def list_read_keys(row: ChatRow) -> tuple[str, ...]:
    """Return the keys of a row that training on a chat or a text reads."""
    if is_raw_text(row):
        return ("text", "ends")
    if is_plain_text(row):
        return ("prompt", "completion")
    return (*(("messages",) if "messages" in row else ("prompt", "completion")), "tools", *ROW_MARKS)


def _read_part(part: JsonValue, place: str) -> str:
    """Return the text of a part of a message's content."""
    full = {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else {}
    if full.keys() == {"type", "text"} and full["type"] == "text" and isinstance(full["text"], str):
        return str(full["text"])
    found = [value for key, value in full.items() if key == "type" and value != "text"] or sorted(full.keys() - {"type"}) or [part]
    raise MessageError(place, f"must be a part of the type text with its text and nothing else, found {found[0]!r:.60}")


def _read_marks(message: Message, place: str) -> None:
    """Replace the marks that say whether the message is learned by `"weight": 0` for an answer that is not."""
    marks: dict[str, bool] = {}
    for key in (each for each in (*LEARNED, *UNLEARNED) if each in message):
        value = message.pop(key)
        if not isinstance(value, bool | int | float) or value not in (0, 1) or (key == "weight" and isinstance(value, bool)):
            raise MessageError(f"{place}.{key}", f"must be 0 (not learned) or 1, found {value!r:.60}")
        marks[key] = bool(value) != (key in UNLEARNED)
    if found := next((key for key in UNCLEAR if key in message), None):
        raise MessageError(f"{place}.{found}", f"is not supported: {UNCLEAR[found]}")
    if len({*marks.values()}) > 1:
        raise MessageError(place, f"has {' and '.join(marks)}, which contradict each other on whether it is learned; remove one of them")
    if message["role"] == "assistant":
        message |= {"weight": 0} if False in marks.values() else {}
    elif any(learned for key, learned in marks.items() if key not in ("weight", *UNLEARNED)):  # OpenAI gives only answers a weight
        raise MessageError(place, f"is a message of the {message['role']} that is marked as learned; only answers of the assistant are")


def _read_calls(message: Message, place: str) -> None:
    """Parse the tool calls, and move a `function_call`, OpenAI's format before tools, among them."""
    calls = message.pop("tool_calls", [])  # an empty list is dropped: some templates only check whether the key exists
    if not isinstance(calls, list):
        raise MessageError(f"{place}.tool_calls", f"must be a list of calls, found {calls!r:.60}")
    if "function_call" in message:
        calls = [*calls, {"type": "function", "function": message.pop("function_call")}]
        message["content"] = message.get("content", "")
    if calls:
        message["tool_calls"] = [_read_call(call, place) for call in calls]


def _read_call(call: JsonValue, place: str) -> dict[str, JsonValue]:
    """Return a tool call whose arguments are an object. In OpenAI's format they are a string of JSON, which some templates would quote
    again."""
    whole = call if isinstance(call, dict) else {}
    function = whole.get("function", whole)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise MessageError(f"{place}.tool_calls", f"must hold objects with a function's name and arguments, found {call!r:.60}")
    arguments = function.get("arguments")
    if arguments is None:
        return whole
    if isinstance(arguments, str):
        try:
            arguments = strict_json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            problem = f"have the arguments of {function['name']}, which are not JSON ({strict_json.one_line(error)})"
            raise MessageError(f"{place}.tool_calls", problem) from None
    if not isinstance(arguments, dict):
        problem = f"have the arguments of {function['name']}, which must be an object, found {function['arguments']!r:.60}"
        raise MessageError(f"{place}.tool_calls", problem)
    decoded = {**function, "arguments": arguments}
    return {**whole, "function": decoded} if "function" in whole else decoded
