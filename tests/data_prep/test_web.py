"""What the pages share: the address, the policy. (That a browser reaches for nothing else is seen where a page is driven.)"""

from __future__ import annotations

import asyncio
import socket

import pytest

from data_prep import web
from finetune.errors import UserError


def test_a_taken_port_and_a_foreign_address_are_told() -> None:
    with socket.socket() as taken:
        taken.bind((web.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"--port {port} cannot be opened .*; choose another, as --port {port + 1}"):
            web.require_free(port)
    web.require_free(port)
    for host in ("no.such.host.invalid", "203.0.113.1"):
        with pytest.raises(UserError, match=f"--host {host} is no address of this machine"):
            web.require_free(port, host)


def test_every_answer_tells_the_browser_to_stay_here() -> None:
    sent: list[dict] = []

    async def app(scope: dict, receive: object, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": b"hello"})

    async def send(message: dict) -> None:
        sent.append(message)

    asyncio.run(web.closed(app)({"type": "http"}, None, send))
    assert sent[0]["headers"] == [(b"x-own", b"1"), (b"content-security-policy", web.POLICY.encode())]
    assert sent[1] == {"type": "http.response.body", "body": b"hello"}
    assert "http" not in web.POLICY
