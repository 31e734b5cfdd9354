"""The shapes in which people keep conversations, read into one: {"messages": […], "tools": […]}, or {"prompt": …, "completion": …}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from finetune.errors import UserError
from finetune.strict_json import loads

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
SHOWN_KEYS = 12


class ShapeError(UserError):
    """The keys of a row are those of no known shape, of several, or not those of the shape that was asked for."""


class Shape(NamedTuple):
    """One way to keep a conversation."""

    keys: frozenset[str]
    """All of them are there."""
    also: frozenset[str]
    """These may be there and are read too; any other key is left out."""
    read: Callable[[Row], Row]


def shape_of(row: Row) -> str:
    """The name of a row's shape. Raises `ShapeError` naming its keys if there is none, or more than one."""
    found = [name for name, shape in SHAPES.items() if shape.keys <= row.keys()]
    if len(found) == 1:
        return found[0]
    known = "; ".join(f"{name}: {' and '.join(sorted(shape.keys))}" for name, shape in SHAPES.items())
    what = f"more than one known shape ({', '.join(found)}), so say which with --shape" if found else f"no known shape ({known})"
    raise ShapeError(f"{what}; its keys are {_keys(row)}")


def normalise(row: Row, shape: str) -> Row:
    """A row in the one shape. Raises `UserError` saying what about it is not as its shape asks."""
    if missing := SHAPES[shape].keys - row.keys():
        raise ShapeError(f"no {' and no '.join(sorted(missing))}, which shape {shape} has; its keys are {_keys(row)}")
    found = SHAPES[shape].read(row)
    tools = _tools(row.get("tools"))
    return {**found, "tools": tools} if tools else found


def left_out(row: Row, shape: str) -> list[str]:
    """Keys of a row that hold something and that `normalise` does not read."""
    read = SHAPES[shape].keys | SHAPES[shape].also
    return [key for key, value in row.items() if key not in read and value not in (None, "")]


def decoded(value: Any, what: str) -> Any:
    """Tables cannot hold what differs from row to row, so people keep it there as JSON in a string. What is empty comes back as None."""
    if not isinstance(value, str) or not value.strip():
        return value if isinstance(value, int | float) else value or None
    try:
        return loads(value)
    except ValueError as error:
        raise UserError(f"{what} is a text that is not JSON ({error})") from None


def _keys(row: Row) -> str:
    more = [f"and {len(row) - SHOWN_KEYS} more"] if len(row) > SHOWN_KEYS else []
    return ", ".join([*(f"{key:.40}" for key in list(row)[:SHOWN_KEYS]), *more]) or "none"


def _tools(value: Any) -> list[Row]:
    """Function schemas: a list of objects, or JSON in a string for all of them or for each."""
    found = decoded(value, "tools") or []
    tools = [decoded(tool, f"tools[{number}]") for number, tool in enumerate(found)] if isinstance(found, list) else found
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"tools must be a list of objects, found {value!r:.60}")
    return tools


def _messages(row: Row) -> Row:
    return {"messages": [*_system(row), *_turns(row["messages"], "messages")]}


def _sharegpt(row: Row) -> Row:
    return {"messages": [*_system(row), *_turns(row["conversations"], "conversations")]}


def _alpaca(row: Row) -> Row:
    asked = "\n\n".join(part for part in (_text(row, "instruction"), _text(row, "input")) if part)
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": _text(row, "output")}]
    return {"messages": [*_system(row), *_past(row.get("history")), *turns]}


def _past(value: Any) -> list[Row]:
    pairs = decoded(value, "history") or []
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise UserError(f"history must be a list of [question, answer], found {value!r:.60}")
    return [{"role": role, "content": said} for pair in pairs for role, said in zip(("user", "assistant"), pair, strict=True)]


def _system(row: Row) -> list[Row]:
    """The system prompt that stands beside the conversation."""
    prompt = _text(row, "system")
    return [{"role": "system", "content": prompt}] if prompt.strip() else []


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str | None):
        raise UserError(f"{key} must be text, found {value!r:.40}")
    return value or ""


def _completion(row: Row) -> Row:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str) and not (_holds_turns(prompt) and _holds_turns(completion)):
        return {"prompt": prompt, "completion": completion}
    return {"prompt": _turns(prompt, "prompt"), "completion": _turns(completion, "completion")}


def _holds_turns(text: str) -> bool:
    """Whether a text is a list of messages as a table keeps it, and not the text of a row."""
    try:
        found = loads(text) if text.lstrip()[:1] == "[" else None
    except ValueError:
        return False
    return isinstance(found, list) and bool(found) and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in found)


def _turns(value: Any, what: str) -> list[Row]:
    turns = decoded(value, what)
    if not isinstance(turns, list) or not turns:
        raise UserError(f"{what} must be a list of messages, found {value!r:.60}")
    return [_turn(turn, f"{what}[{number}]") for number, turn in enumerate(turns)]


def _turn(turn: Any, what: str) -> Row:
    """One message with `role` and `content`, from those names or from ShareGPT's `from` and `value`; keys that hold null are no keys."""
    if not isinstance(turn, dict):
        raise UserError(f"{what} must be an object, found {turn!r:.60}")
    told: Row = {_name(key, turn): value for key, value in turn.items() if value is not None}
    role = told.get("role")
    if role == "function_call":
        return {**told, "role": "assistant", "content": "", "tool_calls": _wrapped(told.get("content"), what)}
    if not isinstance(role, str) or role.lower() not in ROLES:
        raise UserError(f"{what} has the role {role!r:.40}; known are {', '.join(ROLES)}, function_call")
    calls = _calls(told.pop("tool_calls", None), f"{what}.tool_calls")  # some templates ask only whether the key is there
    return {**told, "role": ROLES[role.lower()], **({"tool_calls": calls} if calls else {})}


def _name(key: str, turn: Row) -> str:
    """ShareGPT's name in everybody's words, unless the turn has both."""
    usual = NAMES.get(key, key)
    return key if usual in turn else usual


def _wrapped(value: Any, what: str) -> list[Row]:
    """The calls that a `function_call` of ShareGPT has as its value, as everybody else writes them."""
    found = decoded(value, what)
    calls = _calls(found if isinstance(found, list) else [found], what)
    if not calls:
        raise UserError(f"{what} is a function_call without a call")
    return [call if "function" in call else {"type": "function", "function": call} for call in calls]


def _calls(value: Any, what: str) -> list[Row]:
    found = decoded(value, what)
    if not isinstance(found, list | None):
        raise UserError(f"{what} must be a list of calls, found {value!r:.60}")
    return [_call(call, what) for call in found or []]


def _call(call: Any, what: str) -> Row:
    """A call with its arguments as an object. OpenAI keeps them as JSON in a string, which some templates would quote once more."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UserError(f"{what} must hold calls with a function's name, found {call!r:.60}")
    if "arguments" not in function:
        return call
    arguments = decoded(function["arguments"], f"{what}: the arguments of {function['name']}") or {}
    if not isinstance(arguments, dict):
        raise UserError(f"{what}: the arguments of {function['name']} must be an object, found {function['arguments']!r:.60}")
    plain = {**function, "arguments": arguments}
    return {**call, "function": plain} if "function" in call else plain


EVERYWHERE = frozenset({"tools", "system"})
SHAPES = {
    "messages": Shape(frozenset({"messages"}), EVERYWHERE, _messages),
    "sharegpt": Shape(frozenset({"conversations"}), EVERYWHERE, _sharegpt),
    "alpaca": Shape(frozenset({"instruction", "output"}), EVERYWHERE | {"input", "history"}, _alpaca),
    "completion": Shape(frozenset({"prompt", "completion"}), frozenset({"tools"}), _completion),
}
"""Name → keys that a row of this shape has, and how it is read."""
