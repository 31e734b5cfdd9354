"""Tests of `overtone.recipes.serving.draining_server`; test_http_server.py tests it with signals and a model."""

from __future__ import annotations

import asyncio
import http.client
import signal
import threading
import time
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, cast

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from overtone.recipes.serving.api_errors import to_refusal
from overtone.recipes.serving.draining_server import DrainingServer, status_routes
from overtone.recipes.serving.prometheus_metrics import ServerMetrics
from overtone.recipes.serving.request_queue import RequestQueue
from overtone.recipes.serving.running_batch_interface import OneAtATime
from overtone.recipes.serving.streamed_response import DeadlineResponse, await_first
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from tests import loopback


def shut_down(monkeypatch: pytest.MonkeyPatch, sent: list[int], busy: list[bool], seconds: float = 60.0) -> tuple[list[str], list[bool]]:
    """(what happened in which order, values of `busy` that were left) when the signals were sent before the shutdown."""
    events = list[str]()

    async def close(*_: Any) -> None:
        events.append("closed")

    monkeypatch.setattr(uvicorn.Server, "shutdown", close)
    server = DrainingServer(
        uvicorn.Config(FastAPI()),
        is_busy=lambda: busy.pop(0) if len(busy) > 1 else busy[0],
        refuse_new=lambda: events.append("refused"),
        fail_waiting=lambda: events.append("failed"),
        drain_seconds=seconds,
    )
    for one in sent:
        server.handle_exit(one, None)
    asyncio.run(server.shutdown())
    return events, busy


def test_sigterm_waits_for_the_requests(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert shut_down(monkeypatch, [signal.SIGTERM], [True, True, True, False]) == (["refused", "failed", "closed"], [False])
    assert "completing the requests in the queue, for at most 60 s" in capsys.readouterr().out


@pytest.mark.parametrize("sent", [[signal.SIGINT], [signal.SIGTERM, signal.SIGINT]])
def test_ctrl_c_does_not_wait(sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(_: float) -> None:
        raise AssertionError("the server waited")

    monkeypatch.setattr(asyncio, "sleep", wait)
    assert shut_down(monkeypatch, sent, [True])[0][-2:] == ["failed", "closed"]


def test_the_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shut_down(monkeypatch, [signal.SIGTERM], [True], 0.15) == (["refused", "failed", "closed"], [True])


def count_without_end(_: str) -> Iterator[int]:
    pause = threading.Event()
    number = 0
    while not pause.wait(0.01):
        yield (number := number + 1)


def add_endless_route(app: FastAPI, queue: RequestQueue[str, int]) -> None:
    """`GET /count`: an endless response, with one part for each step."""

    @app.get("/count")
    async def count(call: Request) -> Response:
        steps = queue.generate("m", "", "client")
        first = await await_first(call, anext(steps), "none")

        async def body() -> AsyncGenerator[bytes, None]:
            yield b"%d" % (first.piece or 0)
            async with aclosing(steps):
                async for progress in steps:
                    yield b"%d" % (progress.piece or 0)

        return DeadlineResponse(body(), "text/plain", time.monotonic() + 60)

    app.add_exception_handler(HTTPException, lambda _, error: to_refusal(cast(HTTPException, error)).response())


def test_clients_read_that_the_server_is_shutting_down(capsys: pytest.CaptureFixture[str]) -> None:
    """After the wait, one client waits for its turn, and another one's response has begun."""
    app, port = FastAPI(), loopback.free_port()
    queue = RequestQueue(
        {"m": OneAtATime[str, int](count_without_end)}, ServerMetrics("chat", "text", frozenset({"/count"}), ("m",), {}), 4, 60
    )
    add_endless_route(app, queue)
    config = uvicorn.Config(app, "127.0.0.1", port, log_level="warning", timeout_graceful_shutdown=60)
    server = DrainingServer(config, lambda: queue.pending > 0, queue.refuse_new, queue.fail_waiting, drain_seconds=0.2)
    listening = config.bind_socket()
    listening.listen()
    with ThreadPoolExecutor() as threads:
        running = threads.submit(server.run, [listening])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/count", timeout=60) as begun:
            assert begun.read(1) == b"1"
            waiting = threads.submit(loopback.ask, f"http://127.0.0.1:{port}/count")
            while queue.pending < 2:
                time.sleep(0.01)
            server.handle_exit(signal.SIGTERM, None)
            status, headers, answer = waiting.result(60)
            assert (status, headers["retry-after"]) == (503, "2") and b"the server is shutting down" in answer
            with pytest.raises(http.client.IncompleteRead):
                begun.read()
        running.result(60)
    queue.close()
    log = capsys.readouterr().err
    assert "a response to 127.0.0.1 was broken off: the server is shutting down" in log and "Traceback" not in log


def test_health_reports_the_state() -> None:
    speech = SpeechQueue({}, room=1)
    app = FastAPI()
    app.include_router(status_routes(speech))
    with TestClient(app) as client:
        assert (client.get("/health").status_code, client.head("/health").status_code) == (200, 200)
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
        speech.refuse_new()
        assert (client.get("/health").status_code, client.get("/health").json()) == (503, {"status": "draining"})
    speech.close()
