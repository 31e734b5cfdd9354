"""Finds what a chat template drops of a chat: every text, name, argument and tool result must be in the rendered text, in its order.

Two checks, because each misses what the other finds. The texts of the chat are searched in what was rendered; this finds what a template
drops because of its value. And a chat of the same structure with marks instead of texts is rendered once; this finds a dropped text that is
also in the template, such as "You are a helpful assistant.". Its result is kept, as many rows have the same structure.

A template may strip texts, change white space, and escape them for JSON or HTML. A system message at the beginning may be moved.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import JsonValue

from overtone.data_prep.chats.chat_messages import Message
from overtone.finetune.errors import UserError
from overtone.finetune.storage import strict_json
from overtone.recipes.language.tokenization.chat_template import OPTIONAL_FIELDS, Chat, find_ignored_fields

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THOUGHT_TAG = re.compile(r"</?think>")
SYSTEM_ROLES = ("system", "developer")


class Part(NamedTuple):
    """One text of a chat that must be rendered."""

    message: int
    kind: str
    """`content`, `name`, `tool_calls`, or `thoughts`: what content has before its last `</think>`."""
    forms: tuple[str, ...]
    """The text; several if a value can be written in several ways."""


class Dropped(NamedTuple):
    """Content that a template drops."""

    option: str
    """The value of `options.allow_dropped` that accepts it: a field, or the role of a message whose content it is."""
    what: str
    """For an error message."""


def find_dropped(chat: Chat, text: str, learns: bool) -> list[Dropped]:
    """Return what the template drops of a chat, of which `text` was rendered.

    `learns`: in training, thoughts may only be missing in earlier turns, and only if a chat that ends with them shows them. In a prompt,
    they may always be missing.
    """
    skeleton = json.dumps([_make_skeleton(chat.messages), bool(chat.tools)])
    parts, ignored = list_parts(chat.messages), _find_ignored_parts(skeleton, chat.tokenizer, chat.template, chat.as_parts)
    missing = [part for part in parts if part[:2] in ignored]
    missing += find_missing([part for part in parts if part[:2] not in ignored], chat.messages, text)
    fields = [Dropped(name, f"`{name}`") for name in find_ignored_fields(chat, text)]
    lost = [part for part in missing if part.kind != "thoughts" or (learns and not _renders_thoughts(chat, parts, part.message))]
    return list(dict.fromkeys([*fields, *(_describe(part, chat.messages[part.message]["role"]) for part in sorted(lost))]))


def _describe(part: Part, role: str) -> Dropped:
    option = role if part.kind == "content" else part.kind
    what = {"tool_calls": "a name or an argument of the tool calls", "thoughts": "the thoughts in the content"}.get(
        part.kind, f"the {part.kind}"
    )
    return Dropped(option, f"{what} of messages[{part.message}] ({role})")


def _renders_thoughts(chat: Chat, parts: Sequence[Part], message: int) -> bool:
    """Return whether the thoughts of a message are rendered in the chat that ends with it."""
    thoughts = [part for part in parts if part[:2] == (message, "thoughts")]
    try:
        return not find_missing(thoughts, chat.messages, chat.render(message + 1))
    except UserError:
        return False


def list_parts(messages: Sequence[Message]) -> list[Part]:
    """Return the texts of a chat in its order. The name of a function that a tool result repeats is not among them."""
    called = {call.get("function", call)["name"] for message in messages for call in message.get("tool_calls") or ()}
    return [part for number, message in enumerate(messages) for part in _list_parts_of(number, message, called)]


def _list_parts_of(number: int, message: Message, called: set[str]) -> Iterator[Part]:
    content, name = message.get("content") or "", message.get("name")
    if message["role"] == "assistant" and "</think>" in content:
        thoughts, _, content = content.rpartition("</think>")
        yield from (Part(number, "thoughts", (piece.strip(),)) for piece in THOUGHT_TAG.split(thoughts) if piece.strip())
    if content.strip():
        yield Part(number, "content", (content.strip(),))
    if isinstance(name, str) and name.strip() and not (message["role"] == "tool" and name in called):
        yield Part(number, "name", (name.strip(),))
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        yield Part(number, "tool_calls", (function["name"],))
        yield from (Part(number, "tool_calls", forms) for forms in _list_values(function.get("arguments")))


def _list_values(value: JsonValue) -> Iterator[tuple[str, ...]]:
    """The forms of each key and value in the arguments of a call. Empty texts and null are not rendered by all templates."""
    if isinstance(value, dict):
        yield from ((str(key).strip(),) for key in value if str(key).strip())
        value = [*value.values()]
    if isinstance(value, list):
        for inner in value:
            yield from _list_values(inner)
    elif isinstance(value, bool):
        yield (str(value), str(value).lower())
    elif value is not None and str(value).strip():
        yield (str(value).strip(),) if isinstance(value, str) else (str(value), json.dumps(value))


def find_missing(parts: Sequence[Part], messages: Sequence[Message], text: str) -> list[Part]:
    """Return the parts that are not in the text, in the order of their messages. The parts of one message may be in any order."""
    return _walk(parts, messages, text, False) and _walk(parts, messages, " ".join(text.split()), True)


def _walk(parts: Sequence[Part], messages: Sequence[Message], text: str, transformed: bool) -> list[Part]:
    """`transformed`: also find parts that the template escaped, in a text with single spaces as its only white space."""
    missing, cursor = list[Part](), 0
    first = sum(1 for _ in takewhile(lambda message: message["role"] in SYSTEM_ROLES, messages))
    for message, group in groupby(parts, lambda part: part.message):
        ends = [cursor]
        for part in group:
            forms = [form for one in part.forms for form in _list_forms(one)] if transformed else part.forms
            found = [(at, len(form)) for form in forms if (at := text.find(form, cursor if message >= first else 0)) >= 0]
            if not found:
                missing.append(part)
            elif message >= first:
                ends.append(sum(min(found)))
        cursor = max(ends)
    return missing


def _list_forms(text: str) -> set[str]:
    quoted = json.dumps(text, ensure_ascii=False)[1:-1]
    written = (text, quoted, json.dumps(text)[1:-1], json.dumps(quoted, ensure_ascii=False)[1:-1], html.escape(text), repr(text)[1:-1])
    return {" ".join(form.split()) for form in written}


@lru_cache(maxsize=4096)
def _find_ignored_parts(skeleton: str, tokenizer: PreTrainedTokenizerBase, template: str, as_parts: bool) -> frozenset[tuple[int, str]]:
    """(message, kind) of each part that the template drops whatever its text is. `skeleton`: JSON of `_make_skeleton`, and whether there
    are tools."""
    messages, has_tools = strict_json.loads(skeleton)
    tool = {"name": "function0mark", "description": "text", "parameters": {"type": "object", "properties": {}, "required": []}}
    tools = [{"type": "function", "function": tool}] if has_tools else None
    try:
        text = Chat(messages, tools, tokenizer, template, as_parts).render()
    except UserError:  # the template has rendered the actual chat, so it refuses a mark, which it therefore reads
        return frozenset()
    return frozenset((part.message, part.kind) for part in find_missing(list_parts(messages), messages, text))


def _make_skeleton(messages: Sequence[Message]) -> list[Message]:
    """The messages with marks instead of their texts; equal names and equal ids get equal marks."""
    functions, ids = dict[str, str](), dict[Any, str]()

    def mark_id(id: JsonValue) -> str:
        return ids.setdefault(json.dumps(id), f"call{len(ids):05d}")  # of nine characters, as Mistral's templates demand

    def mark_call(call: Message, number: int) -> Message:
        function = call.get("function", call)
        marked: Message = {"name": functions.setdefault(function["name"], f"function{len(functions)}mark")}
        if function.get("arguments"):
            marked["arguments"] = {f"argument{number}mark": f"value{number}mark"}
        whole = {"type": "function", "function": marked} if "function" in call else marked
        return {**whole, "id": mark_id(call["id"])} if "id" in call else whole

    found = list[Message]()
    for number, message in enumerate(messages):
        marked: Message = {"role": message["role"]}
        for key in ("content", *OPTIONAL_FIELDS[1:]):
            if key in message:
                marked[key] = f"{key}{number}mark" if isinstance(message[key], str) and message[key].strip() else ""
        if isinstance(name := message.get("name"), str) and name.strip():
            marked["name"] = functions[name] if message["role"] == "tool" and name in functions else f"name{number}mark"
        if "tool_call_id" in message:
            marked["tool_call_id"] = mark_id(message["tool_call_id"])
        if message.get("tool_calls"):
            marked["tool_calls"] = [mark_call(call, 100 * number + place) for place, call in enumerate(message["tool_calls"])]
        found.append(marked)
    return found
