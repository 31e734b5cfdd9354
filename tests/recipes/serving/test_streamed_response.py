"""Tests of `overtone.recipes.serving.streamed_response`: errors before the first part, clients that leave, and the deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.serving.api_errors import Refusal
from overtone.recipes.serving.continuous_batch_scheduler import DeadlineError, QueueFullError, ServerClosedError
from overtone.recipes.serving.streamed_response import DeadlineResponse, await_first, find_client

SCOPE: dict[str, Any] = {"type": "http", "asgi": {"spec_version": "2.4"}, "client": ("10.0.0.1", 4000)}


class ClientCall:
    """A request whose client has left, or has not."""

    def __init__(self, left: bool = False, host: str | None = None) -> None:
        self._left = left
        self.client = None if host is None else type("Client", (), {"host": host})

    async def is_disconnected(self) -> bool:
        return self._left


async def fail(error: Exception) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (QueueFullError("full"), 429, None),
        (ServerClosedError("closed"), 503, None),
        (DeadlineError("late"), 503, None),
        (UserError("too long"), 400, "messages"),
    ],
)
def test_an_error_before_the_first_part_is_a_response(error: Exception, status: int, param: str | None) -> None:
    with pytest.raises(Refusal) as caught:
        asyncio.run(await_first(ClientCall(), fail(error), "messages"))  # type: ignore[arg-type]
    assert (caught.value.status_code, caught.value.param, caught.value.detail) == (status, param, str(error))


def test_a_client_that_leaves_ends_the_wait() -> None:
    cancelled = list[str]()

    async def wait_forever() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("yes")
            raise
        return 0

    async def run() -> None:
        with pytest.raises(Refusal) as caught:
            await await_first(ClientCall(left=True), wait_forever(), "input")  # type: ignore[arg-type]
        assert caught.value.status_code == 499
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert cancelled == ["yes"]


def test_a_client_that_does_not_read_is_left_at_the_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    closed = list[str]()

    async def content() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"x"
        finally:
            closed.append("yes")

    async def run() -> None:
        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        response = DeadlineResponse(content(), "text/plain", time.monotonic() + 0.05, {"cache-control": "no-cache"})
        assert response.headers["cache-control"] == "no-cache"
        await response(SCOPE, receive, send)  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(run(), 60))
    assert closed == ["yes"]
    assert "a response to 10.0.0.1 was broken off: its client had not read it at its deadline" in capsys.readouterr().err


def test_clients_are_addresses() -> None:
    assert [find_client(ClientCall(host=host)) for host in (None, "10.0.0.1")] == ["", "10.0.0.1"]  # type: ignore[arg-type]
