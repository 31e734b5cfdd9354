"""The shapes in which people keep conversations, read into one: {"messages": […], "tools": […]}, or {"prompt": …, "completion": …}."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from finetune.errors import UserError

Row = dict[str, Any]
ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "model", "bot"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function", "function_response", "tool_response"), "tool"),
    "system": "system",
    "developer": "developer",
}
"""What speakers are called, and what templates call them."""


NAMES = {"from": "role", "value": "content"}
"""ShareGPT's names of what everybody else calls otherwise."""


def shape_of(row: Row) -> str:
    """The name of a row's shape. Raises `UserError` naming its keys if there is none, or more than one."""
    found = [name for name, (keys, _) in SHAPES.items() if keys <= row.keys()]
    if len(found) == 1:
        return found[0]
    known = "; ".join(f"{name}: {' and '.join(sorted(keys))}" for name, (keys, _) in SHAPES.items())
    what = f"more than one known shape ({', '.join(found)}), so say which with --shape" if found else f"no known shape ({known})"
    raise UserError(f"{what}; its keys are {', '.join(row) or 'none'}")


def normalise(row: Row, shape: str) -> Row:
    """A row in the one shape. Raises `UserError` saying what about it is not as its shape asks."""
    keys, read = SHAPES[shape]
    if missing := keys - row.keys():
        raise UserError(f"no {' and no '.join(sorted(missing))}, which shape {shape} has; its keys are {', '.join(row) or 'none'}")
    found = read(row)
    tools = decoded(row.get("tools"), "tools")
    return {**found, "tools": tools} if tools else found


def decoded(value: Any, what: str) -> Any:
    """Tables cannot hold what differs from row to row, so people keep it there as JSON in a string."""
    if not isinstance(value, str) or not value.strip():
        return value or None
    try:
        return json.loads(value)
    except ValueError as error:
        raise UserError(f"{what} is a text that is not JSON ({error})") from None


def _messages(row: Row) -> Row:
    return {"messages": _turns(row["messages"], "messages")}


def _sharegpt(row: Row) -> Row:
    turns = _turns(row["conversations"], "conversations")
    system = row.get("system")
    return {"messages": [{"role": "system", "content": system}, *turns] if system else turns}


def _alpaca(row: Row) -> Row:
    asked = "\n\n".join(part for part in (_text(row, "instruction"), _text(row, "input")) if part)
    past = [
        {"role": role, "content": said}
        for pair in decoded(row.get("history"), "history") or []
        for role, said in zip(("user", "assistant"), pair, strict=True)
    ]
    system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    return {
        "messages": [*system, *past, {"role": "user", "content": asked}, {"role": "assistant", "content": _text(row, "output")}],
    }


def _text(row: Row, key: str) -> str:
    value = row.get(key) or ""
    if not isinstance(value, str):
        raise UserError(f"{key} must be text, found {value!r:.40}")
    return value


def _completion(row: Row) -> Row:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return {"prompt": prompt, "completion": completion}
    return {"prompt": _turns(prompt, "prompt"), "completion": _turns(completion, "completion")}


def _turns(value: Any, what: str) -> list[Row]:
    turns = decoded(value, what)
    if not isinstance(turns, list) or not turns:
        raise UserError(f"{what} must be a list of messages, found {value!r:.60}")
    return [_turn(turn, f"{what}[{number}]") for number, turn in enumerate(turns)]


def _turn(turn: Any, what: str) -> Row:
    """One message with `role` and `content`, from those names or from ShareGPT's `from` and `value`."""
    if not isinstance(turn, dict):
        raise UserError(f"{what} must be an object, found {turn!r:.60}")
    told: Row = {NAMES.get(str(key), str(key)): value for key, value in turn.items() if value is not None}
    role = told.get("role")
    if role == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": _calls(told.get("content"), what)}
    if not isinstance(role, str) or role.lower() not in ROLES:
        raise UserError(f"{what} has the role {role!r}; known are {', '.join(ROLES)}, function_call")
    if "tool_calls" in told:
        told["tool_calls"] = decoded(told["tool_calls"], f"{what}.tool_calls")
    return {**told, "role": ROLES[role.lower()]}


def _calls(value: Any, what: str) -> list[Row]:
    found = decoded(value, what)
    calls = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, dict) and "name" in call for call in calls):
        raise UserError(f"{what} is a function_call without a name: {value!r:.60}")
    return [{"type": "function", "function": call} for call in calls]


SHAPES: dict[str, tuple[set[str], Callable[[Row], Row]]] = {
    "messages": ({"messages"}, _messages),
    "sharegpt": ({"conversations"}, _sharegpt),
    "alpaca": ({"instruction", "output"}, _alpaca),
    "completion": ({"prompt", "completion"}, _completion),
}
"""Name → keys that a row of this shape has, and how it is read."""
