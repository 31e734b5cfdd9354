"""Reads the body of a chat completion: its fields, its messages as the model's chat template takes them, and the limits of its answer.

https://platform.openai.com/docs/api-reference/chat/create documents the fields. A field that would be ignored is refused.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from finetune.errors import UserError
from recipes.language.chat_template import Chat, check_fields_rendered, find_template
from recipes.language.messages import read_messages, read_tools
from recipes.serving.api_errors import Refusal
from recipes.speech.decoding.token_sampling import CodeSampler

from ..generation import tokenize_prompt
from .chat_batch import AnswerRequest
from .chat_queue import ServedModel

LARGEST_SEED = 2**63 - 1
MESSAGE_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content"})
ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_STOPS, LONGEST_STOP = 4, 256
COLDEST = 0.01
"""Lowest temperature above 0: with less, scores would overflow."""


class StreamOptions(BaseModel):
    """How an answer is streamed."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class TextFormat(BaseModel):
    """The one format of answers."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]


class ChatCall(BaseModel):
    """Body of `POST /v1/chat/completions`. Fields from `frequency_penalty` on are accepted with the values that change nothing."""

    model_config = ConfigDict(extra="forbid")
    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logprobs: Literal[False] | None = None
    response_format: TextFormat | None = None
    tool_choice: Literal["auto"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    store: Literal[False] | None = None
    user: str | None = None
    """A name that changes nothing."""


def parse_call(body: ChatCall, model: ServedModel) -> AnswerRequest:
    """The request to the model. Raises `Refusal`, which names the field, for one that cannot be fulfilled."""
    check_encodable(body)
    messages = read_chat(body.messages, model.loaded.tokenizer)
    row = {"messages": messages, "tools": body.tools}
    try:
        check_rendered(row, model.loaded.tokenizer)
        prompt = tokenize_prompt(row, model.loaded.tokenizer)
    except UserError as error:
        raise Refusal(400, str(error), "invalid_value", "messages") from error
    if not prompt:
        raise Refusal(400, "the prompt has no tokens; this tokenizer drops all of its characters", "invalid_value", "messages")
    if len(prompt) >= model.context:
        message = (
            f"the prompt has {len(prompt):,} tokens, and the model takes {model.context:,} tokens of prompt and answer together; shorten "
            "the conversation"
        )
        raise Refusal(400, message, "context_length_exceeded", "messages")
    limit = min(read_limit(body, model.longest), model.context - len(prompt))
    seed = secrets.randbelow(LARGEST_SEED) if body.seed is None else body.seed
    return AnswerRequest(prompt, read_sampler(body), seed, limit, read_stops(body.stop))


def check_encodable(body: ChatCall) -> None:
    """Raises `Refusal` for half of a character (a lone surrogate), which no tokenizer reads. JSON can hold one."""
    for name, value in body.model_dump(exclude_none=True).items():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            message = f"{name} contains half of a character (a lone surrogate such as \\ud800); send complete characters"
            raise Refusal(400, message, "invalid_value", name) from error


def read_chat(messages: list[dict[str, Any]], tokenizer: Any) -> list[dict[str, Any]]:
    """The messages as a template takes them: content as one text, without null fields. Raises `Refusal`, which names the message."""
    read = [read_message(message, f"messages.{number}") for number, message in enumerate(messages)]
    try:
        checked, _ = read_messages({"messages": read})
    except UserError as error:
        raise Refusal(400, str(error), "invalid_value", "messages") from error
    if checked[-1]["role"] == "assistant":
        message = "the last message is the assistant's, which the model is to generate; remove it"
        raise Refusal(400, message, "invalid_value", f"messages.{len(checked) - 1}")
    # Newer OpenAI models call the system message the developer's; templates of other models do not know that role.
    renames = "developer" not in str(tokenizer.chat_template)
    return [{**one, "role": "system"} if renames and one["role"] == "developer" else one for one in checked]


def read_message(message: dict[str, Any], place: str) -> dict[str, Any]:
    """One message. `place`: of the message in the body, for errors."""
    full = {key: value for key, value in message.items() if value is not None}
    # OpenAI's client returns these fields with an answer, and a conversation sends them back.
    full = {key: value for key, value in full.items() if not (key in ("annotations", "tool_calls") and value == [])}
    for key in full.keys() - MESSAGE_FIELDS:
        raise Refusal(400, f"{place}.{key}: this field is not supported; remove it", "unsupported_value", f"{place}.{key}")
    if full.get("role") not in ROLES:
        raise Refusal(400, f"{place}.role is {full.get('role')!r:.60}; use {', '.join(ROLES)}", "invalid_value", f"{place}.role")
    if isinstance(full.get("content"), list):
        full["content"] = "".join(read_part(part, f"{place}.content.{number}") for number, part in enumerate(full["content"]))
    elif not isinstance(full.get("content", ""), str):
        raise Refusal(400, f"{place}.content must be text, or a list of parts", "invalid_value", f"{place}.content")
    if "content" not in full and not (full["role"] == "assistant" and full.keys() & {"tool_calls"}):
        raise Refusal(400, f"{place}.content is missing", "invalid_value", f"{place}.content")
    return full


def read_part(part: Any, place: str) -> str:
    """The text of a part of a message's content."""
    if isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text" and isinstance(part["text"], str):
        return part["text"]
    kind = part.get("type") if isinstance(part, dict) else part
    raise Refusal(400, f"{place}: only parts of the type text with their text are supported, found {kind!r:.60}", "invalid_value", place)


def check_rendered(row: dict[str, Any], tokenizer: Any) -> None:
    """Raises `UserError` for a part of the chat that the model's template ignores, so that the model would not read it."""
    tools = read_tools(row)
    chat = Chat(row["messages"], tools, tokenizer, find_template(tokenizer, tools))
    try:
        check_fields_rendered(chat)
    except UserError as error:
        ignored = str(error).partition("`")[2].partition("`")[0]
        if not ignored:
            raise
        raise UserError(f"the model's chat template ignores `{ignored}`; remove it") from error
    _check_all_read(chat)


def _check_all_read(chat: Chat) -> None:
    """Raises `UserError` for content of another role than the user's and the assistant's, and for a name, that the template ignores. One
    rendering with a mark at the end of each: a chat can have thousands of messages."""
    mark, marked, places = secrets.token_hex(8), [dict(message) for message in chat.messages], list[tuple[int, str]]()
    for number, message in enumerate(marked):
        for key in ("content", "name"):
            if (key == "name" or message["role"] not in ("user", "assistant")) and message.get(key):
                message[key] += f" {mark}{len(places)}."
                places.append((number, key))
    if not places:
        return
    try:
        text = replace(chat, messages=marked).render()
    except UserError:  # the template does not take the mark, so it does read it
        return
    for index, (number, key) in enumerate(places):
        if f"{mark}{index}." not in text:
            role = chat.messages[number]["role"]
            raise UserError(f"the model's chat template ignores the {key} of messages.{number} ({role}); remove it")


def read_limit(body: ChatCall, longest: int) -> int:
    """The most tokens of the answer."""
    given = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
    if len(given) > 1:
        message = f"max_tokens {body.max_tokens} and max_completion_tokens {body.max_completion_tokens} differ; send one of them"
        raise Refusal(400, message, "invalid_value", "max_completion_tokens")
    limit = given.pop() if given else longest
    if limit > longest:
        name = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
        raise Refusal(400, f"{name} {limit:,} is more than this server generates, {longest:,}", "invalid_value", name)
    return limit


def read_sampler(body: ChatCall) -> CodeSampler:
    """Greedy without temperature and top_p, as `finetune chat`."""
    temperature = body.temperature if body.temperature is not None else 0.0 if body.top_p is None else 1.0
    if 0 < temperature < COLDEST:
        message = f"temperature {temperature:g} is above 0 and below {COLDEST:g}; send 0, which always takes the most likely token"
        raise Refusal(400, message, "invalid_value", "temperature")
    return CodeSampler(greedy=True) if temperature == 0 else CodeSampler(False, temperature, top_p=body.top_p or 1.0)


def read_stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings. Raises `Refusal` for too many, and for an empty or a long one."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS or not all(0 < len(one) <= LONGEST_STOP for one in stops):
        message = f"stop takes up to {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters"
        raise Refusal(400, message, "invalid_value", "stop")
    return stops
