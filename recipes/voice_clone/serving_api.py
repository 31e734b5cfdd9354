"""OpenAI's way to ask for speech: `POST /v1/audio/speech` and `GET /v1/models`, so that existing clients need a new address and no more.

https://platform.openai.com/docs/api-reference/audio/createSpeech says what each field means. What cannot be done here is refused and never
ignored. Two fields are more than theirs: `language` and `seed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request as Call
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from data_prep.request_guard import LARGEST_JSON, Route
from finetune.errors import UserError

from . import serving_audio
from .sampling import Sampling
from .serving_audio import FORMS, Encoder
from .serving_errors import Refusal, of_rejected, of_validation
from .serving_queue import ClosedError, FullError, Speech
from .synthesis import Request, Synthesizer

LARGEST_SEED = 2**63 - 1
ROUTES = (Route("GET", "/v1/.*"), Route("POST", "/v1/.*", largest=LARGEST_JSON, check=lambda value: value))
"""What passes the guard; the router answers what is unknown below `/v1` in OpenAI's shape."""
LISTENING = 0.2
"""Seconds between two looks at whether a client that waits is still there."""


@dataclass(frozen=True)
class Limits:
    """Of one request."""

    chars: int
    """Of its text."""
    seconds: float
    """Of its speech; a model that does not end by itself is cut off there."""


class CustomVoice(BaseModel):
    """A voice given by its id, which is its name."""

    model_config = ConfigDict(extra="forbid")
    id: str


class SpeechCall(BaseModel):
    """Body of a request for speech."""

    model_config = ConfigDict(extra="forbid")
    model: str
    input: str
    voice: str | CustomVoice
    response_format: str = "mp3"
    speed: float = 1.0
    stream_format: str = "audio"
    instructions: str = ""
    language: str | None = None
    """Name, ISO code or `auto`; by default the one that the speaker was trained with."""
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    """The same seed, the same speech."""


def add_to(app: FastAPI, speech: Speech, limits: Limits) -> None:
    """Put the routes into the app, and the shape of their errors."""
    app.include_router(routes(speech, limits))
    app.add_exception_handler(RequestValidationError, lambda _, error: of_validation(error.errors()).response())
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(Exception, lambda _, __: Refusal(500, "the server failed; its log says how").response())


def routes(speech: Speech, limits: Limits) -> APIRouter:
    """`/v1`."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_about(speech, name) for name in speech.models]}

    @router.get("/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        require_model(speech, name)
        return _about(speech, name)

    @router.post("/audio/speech")
    async def create(asked: SpeechCall, call: Call) -> Response:
        request, encoder = await asyncio.to_thread(understood, asked, speech, limits)  # a long text takes a while to be cut into tokens
        chunks = speech.speak(asked.model, request, Sampling(seed=asked.seed, max_seconds=limits.seconds))
        body = encoded(chunks, encoder)
        first = await begun(call, anext(body))
        return Streamed(_again(first, body), media_type=FORMS[asked.response_format].media_type)

    @router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def unknown(path: str) -> None:
        raise Refusal(404, f"there is no /v1/{path} here; /v1/audio/speech and /v1/models are all", "unknown_url")

    return router


def understood(asked: SpeechCall, speech: Speech, limits: Limits) -> tuple[Request, Encoder]:
    """What the model is to say, and how it is sent. Raises `Refusal` for what cannot be done."""
    require_model(speech, asked.model)
    refuse_unsupported(asked, limits)
    voice = speech.models[asked.model]
    request = Request(asked.input, speaker_of(asked, voice), asked.language)
    with refusing("language", "invalid_value"):
        voice.exported.language(asked.language, request.speaker)
    with refusing("input", "invalid_value"):
        voice.check(request)
    with refusing("response_format", "unsupported_value"):
        encoder = serving_audio.encoder(asked.response_format, voice.rate)
    return request, encoder


def refuse_unsupported(asked: SpeechCall, limits: Limits) -> None:
    """Raises `Refusal` for what no model here does."""
    if not is_whole(asked.input):
        raise Refusal(400, "input holds half a character (a lone surrogate, as \\ud800); send whole ones", "invalid_value", "input")
    if not asked.input.strip():
        raise Refusal(400, "input is empty; give the words to speak", "invalid_value", "input")
    if len(asked.input) > limits.chars:
        message = f"input has {len(asked.input)} characters, {limits.chars} are the most; split the text at its paragraphs"
        raise Refusal(400, message, "string_above_max_length", "input")
    if asked.speed != 1.0:
        raise Refusal(400, f"speed {asked.speed:g} is not supported; the voice speaks at its own, 1.0", "unsupported_value", "speed")
    if asked.stream_format != "audio":
        raise Refusal(400, f"stream_format {asked.stream_format!r} is not supported; use audio", "unsupported_value", "stream_format")
    if asked.instructions:
        raise Refusal(400, "instructions are not supported; leave them out", "unsupported_value", "instructions")


def is_whole(text: str) -> bool:
    """Whether a text can be written as UTF-8: JSON can hold half of a character, which no tokenizer reads."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def speaker_of(asked: SpeechCall, voice: Synthesizer) -> str:
    """The speaker's name as the model has it. Raises `Refusal` that lists whom it knows."""
    speaker = (asked.voice if isinstance(asked.voice, str) else asked.voice.id).lower()
    if speaker not in voice.speakers:
        known = ", ".join(voice.speakers) or "no voice by name; it clones from a reference clip, on the page"
        raise Refusal(400, f"voice {speaker!r} is not known; {asked.model} has {known}", "invalid_value", "voice")
    return speaker


@contextmanager
def refusing(param: str, code: str) -> Iterator[None]:
    """Turns a `UserError` into the refusal of a field of the request."""
    try:
        yield
    except UserError as error:
        raise Refusal(400, str(error), code, param) from error


def require_model(speech: Speech, name: str) -> None:
    """Raises `Refusal` that lists what there is."""
    if name not in speech.models:
        raise Refusal(404, f"the model {name!r} does not exist; there is {', '.join(speech.models)}", "model_not_found", "model")


async def encoded(chunks: AsyncGenerator[np.ndarray, None], encoder: Encoder) -> AsyncGenerator[bytes, None]:
    """The file's bytes while it is spoken. The first step takes as long as the first chunk of speech."""
    async with aclosing(chunks):
        async for wave in chunks:
            yield await asyncio.to_thread(encoder.feed, wave)
    yield await asyncio.to_thread(encoder.finish)


async def begun(call: Call, first: Awaitable[bytes]) -> bytes:
    """The first bytes, after which the answer can no longer be an error. Raises `Refusal`; also if the client goes away before."""
    waiting = asyncio.ensure_future(first)
    try:
        while not (await asyncio.wait({waiting}, timeout=LISTENING))[0]:
            if await call.is_disconnected():
                raise Refusal(499, "the client has gone")  # nobody hears this
        return waiting.result()
    except FullError as error:
        raise Refusal(429, str(error), "rate_limit_exceeded") from error
    except ClosedError as error:
        raise Refusal(503, str(error)) from error
    except UserError as error:
        raise Refusal(400, str(error), "invalid_value", "input") from error
    finally:
        waiting.cancel()


class Streamed(StreamingResponse):
    """Closes what it was made from, also when the client goes away in the middle."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().__call__(scope, receive, send)


async def _again(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        if first:
            yield first
        async for data in rest:
            if data:
                yield data


def _about(speech: Speech, name: str) -> dict[str, Any]:
    voice = speech.models[name]
    made = int((voice.exported.folder / "config.json").stat().st_mtime)
    return {"id": name, "object": "model", "created": made, "owned_by": "overtone", "voices": list(voice.speakers)}


async def _answer(_: Call, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return of_rejected(error).response()
