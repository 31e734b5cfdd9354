"""Tests of `recipes.serving.draining_server`; test_http_server.py tests it with signals and a model."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from recipes.serving.draining_server import DrainingServer, status_routes
from recipes.speech.serving.metrics import SpeechServerMetrics
from recipes.speech.serving.request_queue import SpeechQueue


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
        drain_seconds=seconds,
    )
    for one in sent:
        server.handle_exit(one, None)
    asyncio.run(server.shutdown())
    return events, busy


def test_sigterm_waits_for_the_requests(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert shut_down(monkeypatch, [signal.SIGTERM], [True, True, True, False]) == (["refused", "closed"], [False])
    assert "completing the requests in the queue, for at most 60 s" in capsys.readouterr().out


@pytest.mark.parametrize("sent", [[signal.SIGINT], [signal.SIGTERM, signal.SIGINT]])
def test_ctrl_c_does_not_wait(sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(_: float) -> None:
        raise AssertionError("the server waited")

    monkeypatch.setattr(asyncio, "sleep", wait)
    assert shut_down(monkeypatch, sent, [True])[0][-1] == "closed"


def test_the_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shut_down(monkeypatch, [signal.SIGTERM], [True], 0.15) == (["refused", "closed"], [True])


def test_health_reports_the_state() -> None:
    speech = SpeechQueue({}, room=1)
    app = FastAPI()
    app.include_router(status_routes(speech, SpeechServerMetrics(speech.metrics)))
    with TestClient(app) as client:
        assert (client.get("/health").status_code, client.head("/health").status_code) == (200, 200)
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
        speech.refuse_new()
        assert (client.get("/health").status_code, client.get("/health").json()) == (503, {"status": "draining"})
    speech.close()
