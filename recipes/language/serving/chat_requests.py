"""Reads the body of a chat completion: its fields, its messages as the model's chat template takes them, and the limits of its answer.

https://platform.openai.com/docs/api-reference/chat/create documents the fields. A field that would be ignored is refused.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from overtone.data_prep.chats.chat_messages import Message, MessageError, read_message
from overtone.finetune.errors import UserError
from overtone.recipes.language.answer_generation import tokenize_prompt
from overtone.recipes.language.text_generator import COLDEST
from overtone.recipes.serving.api_errors import Refusal
from overtone.recipes.speech.decoding.token_sampling import CodeSampler

from .chat_batch import AnswerRequest
from .chat_queue import ServedModel

LARGEST_SEED = 2**63 - 1
MESSAGE_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content"})
ROLES = ("system", "developer", "user", "assistant", "tool")
MOST_STOPS, LONGEST_STOP = 4, 256


class StreamOptions(BaseModel):
    """Options of a streamed answer."""

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
    messages: list[Message] = Field(min_length=1)
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
    messages = read_chat(body.messages)
    try:
        prompt = tokenize_prompt({"messages": messages, "tools": body.tools}, model.loaded.tokenizer)
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


def read_chat(messages: list[Message]) -> list[Message]:
    """The messages as a template takes them. Raises `Refusal`, which names the message."""
    read = [read_request_message(message, number) for number, message in enumerate(messages)]
    if read[-1]["role"] == "assistant":
        message = "the last message is the assistant's, which the model is to generate; remove it"
        raise Refusal(400, message, "invalid_value", f"messages.{len(read) - 1}")
    return read


def read_request_message(message: Message, number: int) -> Message:
    """The message with this index. Raises `Refusal` for a field or a role that is not supported."""
    place = f"messages.{number}"
    # OpenAI's client returns these fields with an answer, and a conversation sends them back.
    full = {key: value for key, value in message.items() if value is not None and not (key == "annotations" and value == [])}
    for key in full.keys() - MESSAGE_FIELDS:
        raise Refusal(400, f"{place}.{key}: this field is not supported; remove it", "unsupported_value", f"{place}.{key}")
    if full.get("role") not in ROLES:
        raise Refusal(400, f"{place}.role is {full.get('role')!r:.60}; use {', '.join(ROLES)}", "invalid_value", f"{place}.role")
    try:
        return read_message(full, f"messages[{number}]")
    except MessageError as error:
        raise Refusal(400, str(error), "invalid_value", error.place.replace("[", ".").replace("]", "")) from error


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
    """Greedy without temperature and top_p, as `overtone chat`."""
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
