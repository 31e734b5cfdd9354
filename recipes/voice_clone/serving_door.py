"""Who may come in: with the token where there is one, from the page itself and no other site, with no more than a bounded load."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from finetune.errors import UserError

from .serving_errors import Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "OVERTONE_TOKEN"
"""Environment variable; a file is the other way. A command line can be read by every user of the machine, a config by everybody."""
SHORTEST = 16
"""Characters of a token: fewer could be guessed."""
LARGEST_CALL = 2**18
"""Bytes of a request to the API: the longest text, all of it escaped, and then some."""
LARGEST_UPLOAD = 2**24
"""Bytes of any other: two minutes of a reference clip in the worst format."""


@dataclass(frozen=True)
class Door:
    """Who is let in."""

    token: str | None = field(repr=False)
    """None: everybody on this machine."""
    local: bool
    """The server listens to this machine alone."""


def door(host: str, token_file: Path | None, environment: Mapping[str, str] = os.environ) -> Door:
    """Raises `UserError` if others than this machine could come in without a token, and for a token that is none."""
    token = _token(token_file, environment)
    local = host == "localhost" or _is_loopback(host)
    if token is None and not local:
        raise UserError(
            f"--host {host} would let in whoever reaches it; set {TOKEN}, or give --token-file FILE, to {SHORTEST} characters or more, "
            "or leave --host out to serve this machine alone"
        )
    return Door(token, local)


def _token(file: Path | None, environment: Mapping[str, str]) -> str | None:
    given, place = environment.get(TOKEN), TOKEN
    if file is not None:
        try:
            given, place = file.read_text(encoding="utf-8"), f"--token-file {file}"
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--token-file {file} cannot be read ({error})") from error
    if given is None:
        return None
    if len(token := given.strip()) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"{place}: a token is {SHORTEST} or more ASCII characters without spaces; `openssl rand -hex 16` makes one")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def guard(app: ASGIApp, door: Door) -> ASGIApp:
    """Middleware: what is refused here is seen by nothing behind it."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})  # nothing here speaks by one
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        largest = LARGEST_CALL if scope["path"].startswith("/v1/") else LARGEST_UPLOAD
        refusal = refused(door, headers, largest)
        if refusal is not None:
            return await refusal.response()(scope, receive, send)
        return await app(scope, _bounded(receive, largest), send)

    return answer


def refused(door: Door, headers: Mapping[str, str], largest: int) -> Refusal | None:
    """Why a request with these headers (names in lower case) is not answered; None: it is."""
    host = headers.get("host", "")
    if door.local and not _is_this_machine(host):  # a site elsewhere that resolves its own name to this machine would pass for the page
        return Refusal(400, f"host {host!r} is not this server's name", "invalid_host")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:  # the browser would send along what it knows of the token
        return Refusal(403, f"requests from the site {origin} are not answered", "invalid_origin")
    if door.token is not None and not hmac.compare_digest(_shown(headers.get("authorization", "")).encode(), door.token.encode()):
        return Refusal(
            401, "the token is missing or wrong; send it as the API key, or as the password that the page asks for", "invalid_api_key"
        )
    if int(headers.get("content-length") or 0) > largest:
        return too_large(largest)
    return None


def too_large(largest: int) -> Refusal:
    return Refusal(413, f"the request is larger than {largest} bytes", "request_too_large")


def _is_this_machine(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    return name == "localhost" or _is_loopback(name)


def _shown(authorization: str) -> str:
    """The token as a client shows it: `Bearer TOKEN` by the API's clients, a password by browsers, under any name."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return value.strip() if scheme.lower() == "bearer" else ""
    try:
        return base64.b64decode(value, validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _bounded(receive: Receive, largest: int) -> Receive:
    """A body that does not tell its length is counted as it comes."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > largest:
            raise too_large(largest)
        return message

    return counted
