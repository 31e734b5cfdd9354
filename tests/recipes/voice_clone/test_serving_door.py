"""Who is let in, and who is not."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

from finetune.errors import UserError
from recipes.voice_clone.serving_door import TOKEN, Door, door, guard, refused

SECRET = "0123456789abcdef"
HOME = {"host": "127.0.0.1:7861"}


def test_others_are_let_in_only_with_a_token(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.9"):
        assert door(host, None, {}) == Door(None, local=True)
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(UserError, match=f"--host {host} would let in whoever reaches it; set {TOKEN}"):
            door(host, None, {})
        assert door(host, None, {TOKEN: SECRET}) == Door(SECRET, local=False)
    (tmp_path / "token").write_text(f"{SECRET}from-a-file\n")
    assert door("0.0.0.0", tmp_path / "token", {TOKEN: SECRET}).token == f"{SECRET}from-a-file"
    assert SECRET not in repr(door("0.0.0.0", None, {TOKEN: SECRET}))


@pytest.mark.parametrize("bad", ["", "short", "0123456789 abcdef", "0123456789abcdéf"])
def test_a_token_that_is_none(bad: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{TOKEN}: a token is 16 or more"):
        door("127.0.0.1", None, {TOKEN: bad})
    (tmp_path / "token").write_text(bad)
    with pytest.raises(UserError, match="--token-file .*: a token is 16 or more"):
        door("127.0.0.1", tmp_path / "token", {})
    with pytest.raises(UserError, match="--token-file .* cannot be read"):
        door("127.0.0.1", tmp_path / "no", {})


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


def test_the_token_is_checked() -> None:
    guarded = Door(SECRET, local=False)
    for shown in (f"Bearer {SECRET}", f"bearer {SECRET}", basic(SECRET)):
        assert refused(guarded, HOME | {"authorization": shown}, 10) is None
    for shown in ("", "Bearer", f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}", SECRET, basic(""), basic("é"), "Basic !", "Basic /w=="):
        refusal = refused(guarded, HOME | {"authorization": shown}, 10)
        assert refusal is not None and refusal.status_code == 401
    assert refused(guarded, HOME, 10) is not None


def test_only_this_machine_and_no_other_site() -> None:
    local = Door(None, local=True)
    assert refused(local, HOME | {"origin": "http://127.0.0.1:7861"}, 10) is None
    for host in ("localhost:7861", "[::1]:7861", "127.0.0.1"):
        assert refused(local, {"host": host}, 10) is None
    for headers, status in (
        ({"host": "attacker.example:7861"}, 400),
        ({}, 400),
        (HOME | {"origin": "http://attacker.example"}, 403),
        (HOME | {"origin": "http://127.0.0.1:9999"}, 403),
        (HOME | {"origin": "null"}, 403),
        (HOME | {"content-length": "11"}, 413),
    ):
        refusal = refused(local, headers, 10)
        assert refusal is not None and refusal.status_code == status, headers
    assert refused(Door(SECRET, local=False), {"host": "example.org", "authorization": f"Bearer {SECRET}"}, 10) is None


def test_a_body_of_unknown_length_is_counted_and_websockets_are_closed() -> None:
    sent: list[dict] = []

    async def app(scope: dict, receive, send) -> None:
        while True:
            await receive()

    async def receive() -> dict:
        return {"type": "http.request", "body": b"x" * 2**16, "more_body": True}

    async def send(message: dict) -> None:
        sent.append(message)

    guarded = guard(app, Door(None, local=True))
    with pytest.raises(HTTPException) as caught:
        asyncio.run(guarded({"type": "http", "path": "/v1/x", "headers": [(b"host", b"localhost")]}, receive, send))
    assert caught.value.status_code == 413
    asyncio.run(guarded({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
