"""Who is let in: with the token where there is one, from the page itself and no other site."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.request_guard import Caller, Rejected, is_loopback, require_own_site
from finetune.errors import UserError

TOKEN = "OVERTONE_TOKEN"
"""Environment variable; a file is the other way. A command line can be read by every user of the machine, a config by everybody."""
SHORTEST = 16
"""Characters of a token: fewer could be guessed."""
FREE_TRIES = 5
"""Different wrong tokens of a client before it has to wait."""
LONGEST_WAIT = 60.0
"""Seconds."""
FORGOTTEN = 900.0
"""Seconds after a client's last wrong token."""
REMEMBERED = 4096
"""Clients; of more, those of the oldest failures are forgotten."""


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
    local = host == "localhost" or is_loopback(host)
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


@dataclass
class _Failures:
    """Of one client."""

    tries: int = 0
    last: bytes = b""
    """Digest of the last wrong token: a page that was left open sends the same one again and again, and guesses nothing."""
    at: float = 0.0
    closed_until: float = 0.0


class AccessControl:
    """Owns the memory of wrong tokens. A client is an address; of IPv6 the network, since each machine has more addresses than fit."""

    def __init__(self, door: Door, clock: Callable[[], float] = time.monotonic) -> None:
        self._door, self._clock = door, clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def admit(self, caller: Caller) -> None:
        """Raises `Rejected`. Never waits: the answer says how long the client has to, and its tokens are not compared before."""
        require_own_site(caller.headers, self._door.local)
        if self._door.token is None:
            return
        shown, client, now = read_token(caller.headers.get("authorization", "")), client_of(caller.address), self._clock()
        failures = self._failures.get(client)
        if shown and failures is not None and now < failures.closed_until:
            wait = math.ceil(failures.closed_until - now)
            message = f"too many wrong tokens from this address; try again in {wait} s"
            raise Rejected(429, message, "too_many_attempts", {"retry-after": str(wait)})
        if not same_secret(shown, self._door.token):
            if shown:
                self._remember(client, hashlib.sha256(shown.encode()).digest(), now)
            message = "the token is missing or wrong; send it as the API key, or as the password that the page asks for"
            raise Rejected(401, message, "invalid_api_key")

    def _remember(self, client: str, token: bytes, now: float) -> None:
        failures = self._failures.pop(client, _Failures())
        if now > failures.at + FORGOTTEN:
            failures = _Failures()
        if token != failures.last:
            failures.tries += 1
            wait = min(LONGEST_WAIT, 2.0 ** min(failures.tries - FREE_TRIES, 10)) if failures.tries >= FREE_TRIES else 0.0
            failures.last, failures.at, failures.closed_until = token, now, now + wait
        self._failures[client] = failures
        while len(self._failures) > REMEMBERED:
            self._failures.popitem(last=False)


def client_of(address: str) -> str:
    """Under which name a client's failures are remembered."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))


def same_secret(shown: str, token: str) -> bool:
    """Compares digests in constant time, so that neither the characters nor the length of the token can be measured."""
    return hmac.compare_digest(hashlib.sha256(shown.encode()).digest(), hashlib.sha256(token.encode()).digest())


def read_token(authorization: str) -> str:
    """The token as a client shows it: `Bearer TOKEN` by the API's clients, a password by browsers, under any name. Empty: none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return value.strip() if scheme.lower() == "bearer" else ""
    try:
        return base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")[2]
    except ValueError:  # not base64, not ASCII, not UTF-8
        return ""
