"""Reads the messages of a row, in any of the accepted forms, and says which of them may be learned."""

from __future__ import annotations

from typing import Any

from finetune.errors import UserError
from finetune.storage import strict_json

ACCEPTED_FORMS = '{"messages": [{"role": …, "content": …}, …]}, or "prompt" and "completion", both text or both such lists'


def is_plain_text(row: dict[str, Any]) -> bool:
    """Whether a row is a text and its continuation, which need no chat template."""
    return "messages" not in row and isinstance(row.get("prompt"), str) and isinstance(row.get("completion"), str)


def read_messages(row: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """All messages of a row, and the index of the first that may be learned. Raises `UserError`, which names a malformed message."""
    parts: list[Any] = [row["messages"]] if "messages" in row else [row.get("prompt"), row.get("completion")]
    if {"audio", "audio_codes"} & row.keys():
        raise UserError(f"the row is a clip of speech; use --recipe voice_clone for speech, or give rows with {ACCEPTED_FORMS}")
    if not all(isinstance(part, list) and part for part in parts):
        # Values of other keys are not shown: they differ in each row, and the mistake is the same.
        shown = [f"{key}: {value!r:.30}" if key in ("messages", "prompt", "completion") else key for key, value in row.items()]
        raise UserError(f"expected {ACCEPTED_FORMS}; found {', '.join(shown) or 'no key'}")
    messages = [_check_message(number, message) for number, message in enumerate(message for part in parts for message in part)]
    return messages, len(parts[0]) if len(parts) == 2 else 0


def read_tools(row: dict[str, Any]) -> list[Any] | None:
    """JSON schemas of functions, for the template; None if the row has none. Raises `UserError` for anything else."""
    tools = row.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise UserError(f"tools must be a list of JSON schemas, found {tools!r:.60}")
    return tools or None


def _check_message(number: int, message: Any) -> dict[str, Any]:
    """A message without null fields, with the arguments of its tool calls parsed.

    transformers 5 drops null fields; transformers 4 would pass them to the template.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise UserError(f"messages[{number}] must be an object with a role, found {message!r:.60}")
    full = {key: value for key, value in message.items() if value is not None}
    for key, kinds, expected in (("content", str | list, "text, or a list of parts"), ("tool_calls", list, "a list of calls")):
        if key in full and not isinstance(full[key], kinds):
            raise UserError(f"messages[{number}].{key} must be {expected}, found {full[key]!r:.60}")
    if isinstance(weight := full.get("weight", 1), bool) or weight not in (0, 1):
        raise UserError(f"messages[{number}].weight must be 0 (the answer is not learned) or 1, found {weight!r:.60}")
    if "tool_calls" in full:
        full["tool_calls"] = [_parse_arguments(number, call) for call in full["tool_calls"]]
    return full


def _parse_arguments(number: int, call: Any) -> Any:
    """A tool call whose arguments are an object. In OpenAI's format they are a string of JSON, which some templates would quote again."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or "name" not in function:
        raise UserError(f"messages[{number}].tool_calls must hold objects with a function's name and arguments, found {call!r:.60}")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        decoded = {**function, "arguments": strict_json.loads(arguments)}
    except ValueError as error:
        raise UserError(
            f"messages[{number}]: the arguments of tool call {function['name']} are not JSON ({strict_json.one_line(error)})"
        ) from None
    return {**call, "function": decoded} if "function" in call else decoded
