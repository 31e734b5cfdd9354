"""The app of all servers admits the given routes and its status, with the token alone, and announces its address."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from overtone.finetune.errors import UserError
from overtone.finetune.pages import web_server
from overtone.finetune.pages.request_validation import Route
from overtone.recipes.serving import served_app
from overtone.recipes.serving.access_control import AccessPolicy
from overtone.recipes.serving.prometheus_metrics import ServerMetrics
from overtone.recipes.serving.server_options import Address, add_server_options

TOKEN = "t" * 40


def make_queue(done: list[str], waiting: int = 0) -> Any:
    return SimpleNamespace(
        metrics=ServerMetrics("test", "text", frozenset({"/v1/work"}), ("mine",), {}),
        draining=False,
        pending=waiting,
        refuse_new=lambda: done.append("refuse"),
        fail_waiting=lambda: done.append("fail"),
    )


def test_only_given_routes_are_admitted_and_only_health_is_public() -> None:
    app = served_app.make_app(make_queue([]), AccessPolicy(TOKEN, local=False), (Route("GET", "/v1/.*"),))
    app.add_api_route("/v1/work", lambda: "done")
    app.add_api_route("/secret", lambda: "never")
    client, header = TestClient(app), {"Authorization": f"Bearer {TOKEN}"}
    assert client.get("/health").status_code == 200
    assert client.get("/v1/work").status_code == client.get("/metrics").status_code == 401
    answer = client.get("/v1/work", headers=header)
    assert (answer.status_code, answer.json()) == (200, "done") and "content-security-policy" in answer.headers
    assert client.get("/secret", headers=header).status_code == 404 and client.get("/docs", headers=header).status_code == 404
    assert 'overtone_http_requests_total{method="GET",path="/v1/work",status="200"} 1.0' in client.get("/metrics", headers=header).text


@pytest.mark.parametrize(("waiting", "busy"), [(0, False), (1, True)])
def test_the_server_drains_the_queue_and_says_where_it_is(monkeypatch: pytest.MonkeyPatch, waiting: int, busy: bool) -> None:
    given: list[Any] = []

    def run(app: FastAPI, host: str, port: int, announcement: str, make_server: Callable[..., Any], proxies: object) -> None:
        given.extend([host, port, announcement, make_server.keywords, proxies])  # type: ignore[attr-defined]

    monkeypatch.setattr(web_server, "run_server", run)
    done: list[str] = []
    address, policy = Address("127.0.0.1", 8000), AccessPolicy(TOKEN, local=True)
    access = served_app.ServerAccess(address, policy, 3.0)
    access.run(FastAPI(), make_queue(done, waiting), f"{address.url}/v1", "   API: there")
    host, port, announcement, settings, proxies = given
    assert (host, port, proxies) == ("127.0.0.1", 8000, policy.proxies)
    assert announcement == f"serve: {address.url}/v1, protected by a token   API: there   (stop with Ctrl-C)"
    assert settings["is_busy"]() is busy and settings["drain_seconds"] == 3.0
    settings["refuse_new"]()
    settings["fail_waiting"]()
    assert done == ["refuse", "fail"]


def parse_options(port: int, host: str = "127.0.0.1") -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_server_options(parser)
    return parser.parse_args(["--port", str(port), "--host", host, "--drain-seconds", "2", "--trusted-proxy", "10.0.0.1"])


def test_a_session_has_a_private_folder_until_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    access = served_app.check_access(parse_options(port))
    assert access.address.url == f"http://127.0.0.1:{port}" and access.drain_seconds == 2.0 and "10.0.0.1" in access.policy.proxies
    with access.open_session() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700 and f"overtone-serve-127.0.0.1-{port}" in folder.name
        assert capsys.readouterr().out == ""
    assert not folder.exists() and capsys.readouterr().out == "serve: stopped\n"
    with pytest.raises(UserError, match="fault"), access.open_session():
        raise UserError("fault")
    assert capsys.readouterr().out == ""


def test_an_address_that_is_taken_or_open_to_all_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="--port"):
            served_app.check_access(parse_options(taken.getsockname()[1]))
    with pytest.raises(UserError, match="would admit everyone"):
        served_app.check_access(parse_options(1, "0.0.0.0"))
