"""OpenAI's API for speech: `POST /v1/audio/speech` and `GET /v1/models`, so that existing clients need only another address.

https://platform.openai.com/docs/api-reference/audio/createSpeech documents the fields. A request that cannot be fulfilled is refused; no
field is ignored. The fields `language` and `seed` are additions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request as Call
from starlette.responses import Response

from data_prep.pages.request_validation import LARGEST_JSON, Route
from finetune.errors import UserError
from finetune.storage.synthetic_audio_mark import SyntheticMark
from recipes.serving.api_errors import Refusal, to_refusal, validation_refusal
from recipes.serving.model_names import require_model
from recipes.serving.streamed_response import DeadlineResponse, await_first, find_client
from recipes.speech.interface import SpeechRequest, SpeechSampling, Voice
from recipes.speech.serving import audio_encoding
from recipes.speech.serving.audio_encoding import FORMATS, AudioEncoder
from recipes.speech.serving.request_queue import SpeechQueue

LARGEST_SEED = 2**63 - 1
ROUTES = (Route("GET", "/v1/.*"), Route("POST", "/v1/.*", largest=LARGEST_JSON, check=lambda value: value))
"""Requests that the guard admits. The router answers unknown paths below `/v1` in OpenAI's format."""


@dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    chars: int
    """Maximum length of the text."""
    seconds: float
    """Maximum duration of the speech; longer speech is cut off."""


class CustomVoice(BaseModel):
    """A voice as an object; its id is the speaker's name."""

    model_config = ConfigDict(extra="forbid")
    id: str


class SpeechCall(BaseModel):
    """Body of `POST /v1/audio/speech`."""

    model_config = ConfigDict(extra="forbid")
    model: str
    input: str
    voice: str | CustomVoice
    response_format: str = "mp3"
    speed: float = 1.0
    stream_format: str = "audio"
    instructions: str = ""
    language: str | None = None
    """Name, ISO code or `auto`; by default the language of the speaker's training data."""
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    """The same seed gives the same speech."""


def add_to(app: FastAPI, speech: SpeechQueue, limits: Limits) -> None:
    """Add the routes and the handlers of their errors to the app."""
    app.include_router(routes(speech, limits))
    app.add_exception_handler(RequestValidationError, lambda _, error: validation_refusal(error.errors()).response())
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, lambda _, __: Refusal(500, "the server failed; see its log").response())


def routes(speech: SpeechQueue, limits: Limits) -> APIRouter:
    """The router of `/v1`."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_describe_model(speech, name) for name in speech.models]}

    @router.get("/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return _describe_model(speech, require_model(speech, name))

    @router.post("/audio/speech")
    async def create(body: SpeechCall, call: Call) -> Response:
        body = body.model_copy(update={"model": require_model(speech, body.model)})
        request, encoder = await asyncio.to_thread(parse_call, body, speech, limits)  # tokenizing a long text takes time
        sampling, deadline = SpeechSampling(seed=body.seed, max_seconds=limits.seconds), time.monotonic() + speech.deadline_seconds
        encoded = encode(speech.speak(body.model, request, sampling, find_client(call)), encoder)
        first = await await_first(call, anext(encoded), "input")
        return DeadlineResponse(_chain(first, encoded), FORMATS[body.response_format].media_type, deadline)

    @router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def unknown(path: str) -> None:
        raise Refusal(404, f"/v1/{path} does not exist; this server has /v1/audio/speech and /v1/models", "unknown_url")

    return router


def parse_call(body: SpeechCall, speech: SpeechQueue, limits: Limits) -> tuple[SpeechRequest, AudioEncoder]:
    """The request to the model, and the encoder of its speech. Raises `Refusal` for a request that cannot be fulfilled."""
    refuse_unsupported(body, limits)
    voice = speech.models[body.model]
    request = SpeechRequest(body.input, find_speaker(body, voice), body.language)
    with refuse_field("language", "invalid_value"):
        voice.check_language(body.language, request.speaker)
    with refuse_field("input", "invalid_value"):
        voice.check(request)
    with refuse_field("response_format", "unsupported_value"):
        encoder = audio_encoding.make_encoder(body.response_format, voice.rate, SyntheticMark(body.model))
    return request, encoder


def refuse_unsupported(body: SpeechCall, limits: Limits) -> None:
    """Raises `Refusal` for fields that no model here supports, and for texts that are empty or too long."""
    if not is_whole(body.input):
        raise Refusal(
            400, "input contains half of a character (a lone surrogate such as \\ud800); send complete characters", "invalid_value", "input"
        )
    if not body.input.strip():
        raise Refusal(400, "input is empty; send a text to speak", "invalid_value", "input")
    if len(body.input) > limits.chars:
        message = (
            f"input has {len(body.input)} characters, at most {limits.chars} are accepted; split the text, for example at its paragraphs"
        )
        raise Refusal(400, message, "string_above_max_length", "input")
    if body.speed != 1.0:
        raise Refusal(400, f"speed {body.speed:g} is not supported; omit it, or send 1.0", "unsupported_value", "speed")
    if body.stream_format != "audio":
        raise Refusal(400, f"stream_format {body.stream_format!r} is not supported; use audio", "unsupported_value", "stream_format")
    if body.instructions:
        raise Refusal(400, "instructions are not supported; omit them", "unsupported_value", "instructions")


def is_whole(text: str) -> bool:
    """Whether a text can be written as UTF-8: JSON can hold a lone surrogate, which no tokenizer reads."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def find_speaker(body: SpeechCall, voice: Voice) -> str:
    """The speaker's name as the model has it. Raises `Refusal`, which lists the model's speakers."""
    speaker = (body.voice if isinstance(body.voice, str) else body.voice.id).lower()
    if speaker not in voice.speakers:
        known = ", ".join(voice.speakers) or "no voice by name; it clones a reference clip, which is possible on the page"
        raise Refusal(400, f"voice {speaker!r} does not exist; {body.model} has {known}", "invalid_value", "voice")
    return speaker


@contextmanager
def refuse_field(param: str, code: str) -> Iterator[None]:
    """Turn a `UserError` into the refusal of a field of the request."""
    try:
        yield
    except UserError as error:
        raise Refusal(400, str(error), code, param) from error


async def encode(chunks: AsyncGenerator[np.ndarray, None], encoder: AudioEncoder) -> AsyncGenerator[bytes, None]:
    """The bytes of the file while its speech is generated. The first step takes as long as the first chunk of speech."""
    async with aclosing(chunks):
        async for wave in chunks:
            yield await asyncio.to_thread(encoder.feed, wave)
    yield await asyncio.to_thread(encoder.finish)


async def _chain(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        if first:
            yield first
        async for data in rest:
            if data:
                yield data


def _describe_model(speech: SpeechQueue, name: str) -> dict[str, Any]:
    voice = speech.models[name]
    return {"id": name, "object": "model", "created": voice.created, "owned_by": "overtone", "voices": list(voice.speakers)}


async def _handle_http_error(_: Call, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return to_refusal(error).response()
