"""OpenAI's API for transcriptions: `POST /v1/audio/transcriptions` and `GET /v1/models`.

https://platform.openai.com/docs/api-reference/audio/createTranscription documents the fields. A field that this server does not support is
refused; none is ignored. Times of words come from the model's attention; segments are sentences, or end at a pause.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Call
from starlette.responses import JSONResponse, PlainTextResponse, Response

from overtone.data_prep.audio.stream_reader import EXTENSIONS
from overtone.finetune.errors import UserError
from overtone.finetune.pages.request_validation import Route
from overtone.finetune.storage import files
from overtone.recipes.serving.api_errors import Refusal, to_refusal
from overtone.recipes.serving.model_names import require_model
from overtone.recipes.serving.streamed_response import await_first, find_client

from ..inference.file_transcription import TimedWord, Transcript, find_language
from .transcription_queue import API_PATH, ServedRecognizer, TranscriptionQueue, TranscriptionRequest

LARGEST = 25 * 2**20
"""Maximum size of a recording in bytes, which is OpenAI's."""
FORM_OVERHEAD = 2**14
ROUTES = (Route("GET", "/v1/.*"), Route("POST", API_PATH, largest=LARGEST + FORM_OVERHEAD))
"""Requests that the guard admits."""
FORMATS = ("json", "text", "verbose_json")
GRANULARITIES = ("segment", "word")
TIMES = "timestamp_granularities[]"
FIELDS = ("file", "model", "language", "response_format", "temperature", TIMES, "stream", "prompt")
CONCURRENT_UPLOADS = 4
"""Uploads that are read into memory at a time; others wait."""
SENTENCE_ENDS = tuple(".?!。？！…")
PAUSE = 1.0
"""Seconds between two words that end a segment."""


class TranscriptionCall(NamedTuple):
    """A request that can be fulfilled."""

    file: UploadFile
    model: str
    language: str | None
    response_format: str
    granularities: tuple[str, ...]


def add_to(app: FastAPI, queue: TranscriptionQueue, uploads: Path) -> None:
    """Add the routes and the handlers of their errors to the app. `uploads`: a private folder for the recordings of running requests."""
    app.include_router(routes(queue, uploads))
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, lambda _, __: Refusal(500, "the server failed; see its log").response())


def routes(queue: TranscriptionQueue, uploads: Path) -> APIRouter:
    """The router of `/v1`."""
    router, turns = APIRouter(prefix="/v1"), asyncio.Semaphore(CONCURRENT_UPLOADS)

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [describe_model(name, served) for name, served in queue.models.items()]}

    @router.get("/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        name = require_model(queue, name)
        return describe_model(name, queue.models[name])

    @router.post("/audio/transcriptions")
    async def create(call: Call) -> Response:
        async with turns:
            asked, path = await keep_recording(call, queue, uploads)
        try:
            request = TranscriptionRequest(path, asked.language)
            found = await await_first(call, queue.transcribe(asked.model, request, find_client(call)), "file")
        finally:
            files.discard(path)
        return render(found, asked)

    @router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def unknown(path: str) -> None:
        raise Refusal(404, f"/v1/{path} does not exist; this server has {API_PATH} and /v1/models", "unknown_url")

    return router


async def keep_recording(call: Call, queue: TranscriptionQueue, uploads: Path) -> tuple[TranscriptionCall, Path]:
    """Read a request, and write its recording into `uploads`. Raises `Refusal` for one that cannot be fulfilled."""
    try:
        async with call.form(max_files=1, max_fields=len(FIELDS) + 1) as form:
            asked = parse_form(form, queue)
            data = await asked.file.read()
    except ClientDisconnect as error:
        raise Refusal(499, "the client disconnected") from error  # for the log: nobody receives it
    if len(data) > LARGEST:
        raise Refusal(413, f"the file has {len(data):,} bytes, at most {LARGEST:,} are accepted; send it compressed, or in parts")
    suffix = Path(asked.file.filename or "").suffix.lower()
    path = uploads / f"{secrets.token_hex(16)}{suffix if suffix in EXTENSIONS else ''}"
    await asyncio.to_thread(files.write_bytes, path, data)
    return asked, path


async def _handle_http_error(_: Call, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return to_refusal(error).response()


def describe_model(name: str, served: ServedRecognizer) -> dict[str, Any]:
    """A model in OpenAI's format."""
    return {"id": name, "object": "model", "created": served.created, "owned_by": "overtone"}


def parse_form(form: FormData, queue: TranscriptionQueue) -> TranscriptionCall:
    """The fields of a request. Raises `Refusal` for one that is missing, invalid or not supported."""
    if unknown := sorted(set(form) - set(FIELDS)):
        raise Refusal(400, f"the field {unknown[0]} is not supported; known fields: {', '.join(FIELDS)}", "unsupported_value", unknown[0])
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise Refusal(400, "the field file must be a recording", "invalid_value", "file")
    if repeated := [name for name in set(form) - {TIMES} if len(form.getlist(name)) > 1]:
        raise Refusal(400, f"the field {repeated[0]} occurs more than once", "invalid_value", repeated[0])
    texts = {name: str(value) for name, value in form.items() if name != "file"}
    if "model" not in texts:
        raise Refusal(400, f"the field model is missing; models: {', '.join(queue.models)}", "invalid_value", "model")
    model = require_model(queue, texts["model"])
    for name, plain in (("temperature", ("", "0", "0.0")), ("stream", ("", "false", "False")), ("prompt", ("",))):
        if texts.get(name, "") not in plain:
            raise Refusal(400, f"{name} is not supported; leave it out", "unsupported_value", name)
    form_of_answer = texts.get("response_format", FORMATS[0])
    if form_of_answer not in FORMATS:
        raise Refusal(
            400, f"response_format {form_of_answer!r} is not supported; {', '.join(FORMATS)} are", "invalid_value", "response_format"
        )
    granularities = tuple(str(value) for value in form.getlist(TIMES))
    if wrong := [value for value in granularities if value not in GRANULARITIES]:
        raise Refusal(400, f"{TIMES} has {wrong[0]!r}, expected {' or '.join(GRANULARITIES)}", "invalid_value", TIMES)
    if granularities and form_of_answer != "verbose_json":
        raise Refusal(400, f"{TIMES} needs response_format=verbose_json", "invalid_value", TIMES)
    served = queue.models[model]
    try:
        language = find_language(texts.get("language") or None, served.model) or served.language
    except UserError as error:
        raise Refusal(400, str(error), "invalid_value", "language") from None
    return TranscriptionCall(file, model, language, form_of_answer, granularities or GRANULARITIES[:1])


def render(found: Transcript, asked: TranscriptionCall) -> Response:
    """The response to a call."""
    if asked.response_format == "text":
        return PlainTextResponse(found.text + "\n")
    if asked.response_format == "json":
        return JSONResponse({"text": found.text})
    content: dict[str, Any] = {"task": "transcribe", "language": found.language, "duration": round(found.seconds, 2), "text": found.text}
    if "word" in asked.granularities:
        content["words"] = [{"word": word.text.strip(), "start": round(word.start, 2), "end": round(word.end, 2)} for word in found.words]
    if "segment" in asked.granularities:
        content["segments"] = [
            {
                "id": number,
                "start": round(words[0].start, 2),
                "end": round(words[-1].end, 2),
                "text": "".join(word.text for word in words),
            }
            for number, words in enumerate(split_segments(found.words))
        ]
    return JSONResponse(content)


def split_segments(words: list[TimedWord]) -> list[list[TimedWord]]:
    """The words in groups: each ends with a sentence, or before a pause."""
    groups = list[list[TimedWord]]()
    for before, word in zip([None, *words], words, strict=False):
        ended = before is None or before.text.rstrip().endswith(SENTENCE_ENDS) or word.start - before.end > PAUSE
        if ended:
            groups.append([])
        groups[-1].append(word)
    return groups
