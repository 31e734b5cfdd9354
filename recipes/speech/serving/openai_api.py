"""OpenAI's API for speech: `POST /v1/audio/speech` and `GET /v1/models`, so that existing clients need only another address.

https://platform.openai.com/docs/api-reference/audio/createSpeech documents the fields. A request that cannot be fulfilled is refused; no
field is ignored. The fields `language`, `seed`, `ref_audio` and `ref_text` are additions, the last two with the names of other servers.
Long texts are spoken in passages. Speech that a model does not end is never a complete response: a stream is broken off, and a whole file
has the header `x-speech-cut-at-seconds`.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.exceptions import HTTPException
from starlette.requests import Request as Call
from starlette.responses import Response

from overtone.finetune.errors import UserError
from overtone.finetune.pages.request_validation import LARGEST_JSON, Route
from overtone.finetune.storage.synthetic_audio_mark import SyntheticMark
from overtone.finetune.terminal import print_diagnostic
from overtone.recipes.serving.api_errors import Refusal, to_refusal, validation_refusal
from overtone.recipes.serving.continuous_batch_scheduler import CutOffError
from overtone.recipes.serving.model_names import require_model
from overtone.recipes.serving.streamed_response import DeadlineResponse, await_first, find_client
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling, Voice
from overtone.recipes.speech.serving import audio_encoding
from overtone.recipes.speech.serving.audio_encoding import FORMATS, AudioEncoder
from overtone.recipes.speech.serving.passage_batch import list_passages
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from overtone.recipes.speech.serving.uploaded_clips import LARGEST, Clips
from overtone.recipes.speech.spoken_text import prepare_request

LARGEST_SEED = 2**63 - 1
LARGEST_CLIP_TEXT = LARGEST * 4 // 3 + 2**12
"""Maximum characters of a clip in base64, with the head of a `data:` address."""
ROUTES = (
    Route("GET", "/v1/.*"),
    Route("POST", "/v1/audio/speech", largest=LARGEST_JSON + LARGEST_CLIP_TEXT, check=lambda value: value),
    Route("POST", "/v1/.*", largest=LARGEST_JSON, check=lambda value: value),
)
"""Requests that the guard admits. The router answers unknown paths below `/v1` in OpenAI's format."""
PASSAGES_HEADER, REMOVED_HEADER, CUT_HEADER = "x-speech-passages", "x-speech-removed", "x-speech-cut-at-seconds"


@dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    chars: int
    """Maximum length of the text."""
    seconds: float
    """Maximum duration of the speech of a passage; longer speech is cut off."""


class CustomVoice(BaseModel):
    """A voice as an object; its id is the speaker's name."""

    model_config = ConfigDict(extra="forbid")
    id: str


class SpeechCall(BaseModel):
    """Body of `POST /v1/audio/speech`."""

    model_config = ConfigDict(extra="forbid")
    model: str
    input: str
    voice: str | CustomVoice | None = None
    """Left out with `ref_audio`."""
    response_format: str = "mp3"
    speed: float = 1.0
    stream_format: str = "audio"
    instructions: str = ""
    language: str | None = None
    """Name, ISO code or `auto`; by default the language of the speaker's training data."""
    ref_audio: str | None = Field(default=None, max_length=LARGEST_CLIP_TEXT)
    """A clip of the voice to clone, in base64, also as a `data:` address."""
    ref_text: str | None = None
    """Transcript of the clip."""
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    """The same seed gives the same speech."""


@dataclass(frozen=True)
class ParsedCall:
    """A call that can be fulfilled."""

    request: SpeechRequest
    encoder: AudioEncoder
    headers: dict[str, str]
    """Headers of the response: the number of passages in which the text is spoken, and what was dropped from it."""


def add_to(app: FastAPI, speech: SpeechQueue, limits: Limits, clips: Clips) -> None:
    """Add the routes and the handlers of their errors to the app."""
    app.include_router(routes(speech, limits, clips))
    app.add_exception_handler(RequestValidationError, lambda _, error: validation_refusal(error.errors()).response())
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, lambda _, __: Refusal(500, "the server failed; see its log").response())


def routes(speech: SpeechQueue, limits: Limits, clips: Clips) -> APIRouter:
    """The router of `/v1`."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> dict[str, JsonValue]:
        return {"object": "list", "data": [_describe_model(speech, name) for name in speech.models]}

    @router.get("/models/{name:path}")
    async def model(name: str) -> dict[str, JsonValue]:
        return _describe_model(speech, require_model(speech, name))

    @router.post("/audio/speech")
    async def create(body: SpeechCall, call: Call) -> Response:
        deadline = time.monotonic() + speech.deadline_seconds
        body = body.model_copy(update={"model": require_model(speech, body.model)})
        refuse_unsupported(body, limits)
        speaker = find_speaker(body, speech.models[body.model])
        clip = None if body.ref_audio is None else await decode_clip(body.ref_audio, clips)
        request = SpeechRequest(body.input, speaker, body.language, clip, (body.ref_text or "").strip() or None)
        asked = await asyncio.to_thread(parse_call, body, request, speech.models[body.model], limits)  # tokenizing a long text takes time
        sampling = SpeechSampling(seed=body.seed, max_seconds=limits.seconds)
        chunks = speech.speak(body.model, asked.request, sampling, find_client(call))
        media_type = FORMATS[body.response_format].media_type
        if FORMATS[body.response_format].is_written_at_once:
            data, cut = await await_first(call, encode_whole(chunks, asked.encoder), "input")
            return Response(data, media_type=media_type, headers=asked.headers | ({CUT_HEADER: f"{limits.seconds:g}"} if cut else {}))
        encoded = encode(chunks, asked.encoder)
        first = await await_first(call, anext(encoded), "input")
        return DeadlineResponse(_chain(first, encoded), media_type, deadline, asked.headers)

    @router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def unknown(path: str) -> None:
        raise Refusal(404, f"/v1/{path} does not exist; this server has /v1/audio/speech and /v1/models", "unknown_url")

    return router


def parse_call(body: SpeechCall, request: SpeechRequest, voice: Voice, limits: Limits) -> ParsedCall:
    """The request as it is spoken, and the encoder of its speech. Raises `Refusal` for a request that cannot be fulfilled."""
    with refuse_field("language", "invalid_value"):
        voice.check_language(body.language, request.speaker)
    with refuse_field("input", "invalid_value"):
        request, cleaned = prepare_request(request, "input")
        passages = list_passages(request, SpeechSampling(max_seconds=limits.seconds))
        for passage in passages:
            voice.check(passage.request)
    with refuse_field("response_format", "unsupported_value"):
        encoder = audio_encoding.make_encoder(body.response_format, voice.rate, SyntheticMark(body.model))
    removed = {REMOVED_HEADER: cleaned.describe_removed()} if cleaned.removed else {}
    return ParsedCall(request, encoder, {PASSAGES_HEADER: str(len(passages)), **removed})


async def decode_clip(given: str, clips: Clips) -> Path:
    """The clip of a request as a file that models read. Raises `Refusal` if it is not base64, or not audio."""
    _, _, text = given.rpartition(";base64,") if given.startswith("data:") else ("", "", given)
    try:
        data = await asyncio.to_thread(base64.b64decode, "".join(text.split()), validate=True)
    except ValueError:
        message = "ref_audio is not base64; send the bytes of a WAV, FLAC, MP3 or Opus file in base64 (addresses are not fetched)"
        raise Refusal(400, message, "invalid_value", "ref_audio") from None
    if len(data) > LARGEST:
        raise Refusal(400, f"ref_audio has {len(data)} bytes, at most {LARGEST} are accepted", "string_above_max_length", "ref_audio")
    with refuse_field("ref_audio", "invalid_value"):
        return await clips.decode(str(await asyncio.to_thread(clips.keep, data, "")))


def refuse_unsupported(body: SpeechCall, limits: Limits) -> None:
    """Raises `Refusal` for fields that no model here supports, and for texts that are empty or too long."""
    for name, text in (("input", body.input), ("ref_text", body.ref_text or "")):
        if not is_whole(text):
            message = f"{name} contains half of a character (a lone surrogate such as \\ud800); send complete characters"
            raise Refusal(400, message, "invalid_value", name)
        if len(text) > limits.chars:
            message = (
                f"{name} has {len(text)} characters, at most {limits.chars} are accepted; split the text, for example at its paragraphs"
            )
            raise Refusal(400, message, "string_above_max_length", name)
    if body.ref_text and body.ref_audio is None:
        raise Refusal(400, "ref_text is the transcript of ref_audio, which is missing; send both", "invalid_value", "ref_text")
    if body.speed != 1.0:
        raise Refusal(400, f"speed {body.speed:g} is not supported; omit it, or send 1.0", "unsupported_value", "speed")
    if body.stream_format != "audio":
        raise Refusal(400, f"stream_format {body.stream_format!r} is not supported; use audio", "unsupported_value", "stream_format")
    if body.instructions:
        raise Refusal(400, "instructions are not supported; omit them", "unsupported_value", "instructions")


def is_whole(text: str) -> bool:
    """Return whether a text can be written as UTF-8: JSON can hold a lone surrogate, which no tokenizer reads."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def find_speaker(body: SpeechCall, voice: Voice) -> str | None:
    """The speaker's name as the model has it; None with a reference clip. Raises `Refusal`, which lists the model's speakers."""
    if body.ref_audio is not None:
        if body.voice is not None:
            raise Refusal(400, "voice and ref_audio each choose a voice; send one of them", "invalid_value", "voice")
        if not voice.can_clone:
            raise Refusal(400, f"{body.model} cannot clone a reference clip; omit ref_audio", "unsupported_value", "ref_audio")
        return None
    known = ", ".join(voice.speakers) or "no voice by name; it clones a reference clip: send it as ref_audio"
    if body.voice is None:
        raise Refusal(400, f"voice is missing; {body.model} has {known}", "invalid_value", "voice")
    speaker = (body.voice if isinstance(body.voice, str) else body.voice.id).lower()
    if speaker not in voice.speakers:
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


async def encode_whole(chunks: AsyncGenerator[np.ndarray, None], encoder: AudioEncoder) -> tuple[bytes, bool]:
    """The file, and whether its speech was cut off at the time limit, which is also logged."""
    cut = False
    async with aclosing(chunks):
        try:
            async for wave in chunks:
                await asyncio.to_thread(encoder.feed, wave)
        except CutOffError as error:
            cut = True
            print_diagnostic(f"serve: {error}")
    return await asyncio.to_thread(encoder.finish), cut


async def _chain(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        if first:
            yield first
        async for data in rest:
            if data:
                yield data


def _describe_model(speech: SpeechQueue, name: str) -> dict[str, JsonValue]:
    voice = speech.models[name]
    return {"id": name, "object": "model", "created": voice.created, "owned_by": "overtone", "voices": list(voice.speakers)}


async def _handle_http_error(_: Call, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return to_refusal(error).response()
