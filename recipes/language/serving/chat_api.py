"""OpenAI's API for chats: `POST /v1/chat/completions`, whole or streamed, and `GET /v1/models`."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request as Call
from starlette.responses import JSONResponse, Response

from overtone.finetune.pages.request_validation import Route
from overtone.recipes.serving.api_errors import Refusal, to_refusal, validation_refusal
from overtone.recipes.serving.continuous_batch_scheduler import DeadlineError, QueueFullError, ServerClosedError
from overtone.recipes.serving.model_names import require_model
from overtone.recipes.serving.running_batch_interface import STOP
from overtone.recipes.serving.streamed_response import UNBUFFERED, DeadlineResponse, await_first, find_client

from .chat_queue import AnswerProgress, ChatQueue
from .chat_requests import ChatCall, parse_call

LARGEST_CHAT = 2**20
"""Maximum bytes of a request: more than the longest prompt."""
ROUTES = (Route("GET", "/v1/.*"), Route("POST", "/v1/.*", largest=LARGEST_CHAT, check=lambda value: value))
"""Requests that the guard admits. The router answers unknown paths below `/v1` in OpenAI's format."""
DONE = b"data: [DONE]\n\n"


def add_to(app: FastAPI, chats: ChatQueue) -> None:
    """Add the routes and the handlers of their errors to the app."""
    app.include_router(routes(chats))
    app.add_exception_handler(RequestValidationError, lambda _, error: validation_refusal(error.errors()).response())
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, lambda _, __: Refusal(500, "the server failed; see its log").response())


def routes(chats: ChatQueue) -> APIRouter:
    """The router of `/v1`."""
    router = APIRouter(prefix="/v1")
    tokenizing = ThreadPoolExecutor(1, "tokenizing")
    """One thread: a tokenizer is not made for several, and a long prompt must not delay the event loop."""

    @router.get("/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [_describe_model(chats, name) for name in chats.models]}

    @router.get("/models/{name:path}")
    async def model(name: str) -> dict[str, object]:
        return _describe_model(chats, require_model(chats, name))

    @router.post("/chat/completions")
    async def create(body: ChatCall, call: Call) -> Response:
        name = require_model(chats, body.model)
        if body.stream_options is not None and not body.stream:
            raise Refusal(400, "stream_options needs stream: true", "invalid_value", "stream_options")
        deadline = time.monotonic() + chats.deadline_seconds
        request = await asyncio.get_running_loop().run_in_executor(tokenizing, parse_call, body, chats.models[name])
        answer = chats.answer(name, request, find_client(call))
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": body.model}
        if not body.stream:
            whole = await await_first(call, collect(answer, head, len(request.prompt)), "messages")
            return JSONResponse(whole)
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        first = await await_first(call, anext(answer), "messages")
        events = stream_events(first, answer, head, len(request.prompt) if include_usage else None)
        return DeadlineResponse(events, "text/event-stream", deadline, UNBUFFERED)

    @router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def unknown(path: str) -> None:
        message = f"/v1/{path} does not exist; this server has /v1/chat/completions and /v1/models"
        raise Refusal(404, message, "unknown_url")

    return router


async def collect(answer: AsyncGenerator[AnswerProgress, None], head: dict[str, object], prompt_tokens: int) -> dict[str, object]:
    """The whole answer as one object."""
    texts, tokens, finish = list[str](), 0, STOP
    async with aclosing(answer):
        async for progress in answer:
            if progress.piece is not None:
                texts.append(progress.piece.text)
                tokens = progress.piece.tokens
            finish = progress.over or finish
    message = {"role": "assistant", "content": "".join(texts)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": count_usage(prompt_tokens, tokens)}


async def stream_events(
    first: AnswerProgress, rest: AsyncGenerator[AnswerProgress, None], head: dict[str, object], prompt_tokens: int | None
) -> AsyncGenerator[bytes, None]:
    """The answer as server-sent events. `prompt_tokens`: None if the client did not ask for the usage.

    An error ends the stream as an event of its own, which OpenAI's clients raise: the status has been sent.
    """
    head = {**head, "object": "chat.completion.chunk", **({} if prompt_tokens is None else {"usage": None})}
    tokens = 0
    try:
        async with aclosing(rest):
            yield encode_event({**head, "choices": [_choose({"role": "assistant", "content": ""})]})
            async for progress in _chain(first, rest):
                if progress.piece is not None:
                    tokens = progress.piece.tokens
                    if progress.piece.text:
                        yield encode_event({**head, "choices": [_choose({"content": progress.piece.text})]})
                if progress.over is not None:
                    yield encode_event({**head, "choices": [_choose({}, progress.over)]})
    except (ServerClosedError, DeadlineError, QueueFullError) as error:
        yield encode_event(Refusal(503, str(error)).content())
        return
    except Exception:
        yield encode_event(Refusal(500, "the server failed; see its log").content())
        raise
    if prompt_tokens is not None:
        yield encode_event({**head, "choices": [], "usage": count_usage(prompt_tokens, tokens)})
    yield DONE


def encode_event(value: dict[str, object]) -> bytes:
    """A server-sent event. It is ASCII: some clients take more characters than CR and LF for the end of a line."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def count_usage(prompt: int, answer: int) -> dict[str, int]:
    """The numbers of tokens in OpenAI's format."""
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


async def _chain(first: AnswerProgress, rest: AsyncGenerator[AnswerProgress, None]) -> AsyncGenerator[AnswerProgress, None]:
    yield first
    async for progress in rest:
        yield progress


def _choose(delta: dict[str, str], finish: str | None = None) -> dict[str, object]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _describe_model(chats: ChatQueue, name: str) -> dict[str, object]:
    model = chats.models[name]
    return {"id": name, "object": "model", "created": model.created, "owned_by": "overtone", "context_length": model.context}


async def _handle_http_error(_: Call, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return to_refusal(error).response()
