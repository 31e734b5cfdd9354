"""Responses that are sent while they are generated: the wait for their first part, and their end at the deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import Request as Call
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from overtone.finetune.errors import UserError
from overtone.finetune.pages.client_addresses import group_address
from overtone.finetune.terminal import print_diagnostic

from .api_errors import Refusal
from .continuous_batch_scheduler import CutOffError, DeadlineError, QueueFullError, ServerClosedError

CONNECTION_CHECK = 0.2
"""Interval in seconds at which a waiting client's connection is checked."""
UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers that make proxies pass each part on at once."""
First = TypeVar("First")


async def await_first(call: Call, first: Awaitable[First], param: str) -> First:
    """Return the first part of a result; after it, the response can no longer be an error. Raises `Refusal`, also if the client
    disconnects.

    `param`: the field of the request that an error of the model concerns.
    """
    waiting = asyncio.ensure_future(first)
    try:
        while not (await asyncio.wait({waiting}, timeout=CONNECTION_CHECK))[0]:
            if await call.is_disconnected():
                raise Refusal(499, "the client disconnected")  # for the log: nobody receives it
        return waiting.result()
    except QueueFullError as error:
        raise Refusal(429, str(error), "rate_limit_exceeded") from error
    except (ServerClosedError, DeadlineError, CutOffError) as error:
        raise Refusal(503, str(error)) from error
    except UserError as error:
        raise Refusal(400, str(error), "invalid_value", param) from error
    finally:
        waiting.cancel()


class DeadlineResponse(StreamingResponse):
    """A streamed response that closes its source, also if the client disconnects before the end. It is aborted if its client reads so
    slowly that the deadline passes, if the server stops, or if the result is cut off at a limit. The client can then detect that the end is
    missing."""

    def __init__(
        self, content: AsyncGenerator[bytes, None], media_type: str, deadline: float, headers: Mapping[str, str] | None = None
    ) -> None:
        """`deadline`: a time of `time.monotonic`."""
        super().__init__(content, media_type=media_type, headers=headers)
        self._deadline = deadline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self.body_iterator), asyncio.timeout(self._deadline - time.monotonic()):  # type: ignore[type-var]
                await super().__call__(scope, receive, send)
        except (TimeoutError, DeadlineError, ServerClosedError, CutOffError) as error:
            # Without the last part of the body, uvicorn closes the connection.
            reason = str(error) or "its client had not read it at its deadline"
            print_diagnostic(f"serve: a response to {find_address(scope)} was broken off: {reason}")


def find_address(scope: Scope) -> str:
    """The address of the client of an ASGI call; `a client` if the server does not know it."""
    address = scope.get("client")
    return str(address[0]) if address else "a client"


def find_client(call: Call) -> str:
    """The client that takes turns with others: an address, or an IPv6 /64 network."""
    return group_address(call.client.host) if call.client is not None else ""
