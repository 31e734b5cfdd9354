"""Access control: requests need the token, if one is set, and may come from the page itself but from no other site."""

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

from data_prep.pages.request_guard import Caller, RequestError, is_loopback, require_own_site
from finetune.errors import UserError

TOKEN = "OVERTONE_TOKEN"
"""Environment variable of the token. There is no option for it: every user of the machine can read a command line."""
SHORTEST = 16
"""Least characters of a token: a shorter one could be guessed."""
FREE_TRIES = 5
"""Different wrong tokens that a client may send before it has to wait."""
LONGEST_WAIT = 60.0
"""Seconds that a client has to wait at most."""
FORGOTTEN = 900.0
"""Seconds after a client's last wrong token at which its failures are forgotten."""
REMEMBERED = 4096
"""Clients whose failures are remembered; beyond it, the oldest failures are forgotten."""


@dataclass(frozen=True)
class AccessPolicy:
    """What a request needs to be admitted."""

    token: str | None = field(repr=False)
    """None: every program on this machine is admitted."""
    local: bool
    """Whether the server listens on a loopback address only."""


def load_access_policy(host: str, token_file: Path | None, environment: Mapping[str, str] = os.environ) -> AccessPolicy:
    """Raises `UserError` if other machines could connect without a token, and for an invalid token."""
    token = _token(token_file, environment)
    local = host == "localhost" or is_loopback(host)
    if token is None and not local:
        raise UserError(
            f"--host {host} would admit everyone who can reach it; set {TOKEN}, or give --token-file FILE, to {SHORTEST} characters or "
            "more, or leave --host out to serve this machine only"
        )
    return AccessPolicy(token, local)


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
    """Wrong tokens of one client."""

    tries: int = 0
    last: bytes = b""
    """Digest of the last wrong token: a page that was left open repeats the same one, which is no guess."""
    at: float = 0.0
    closed_until: float = 0.0


class AccessControl:
    """Owns the record of wrong tokens by client: an IPv4 address, or an IPv6 /64 network, because one machine has a whole network."""

    def __init__(self, policy: AccessPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._clock = policy, clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def admit(self, caller: Caller) -> None:
        """Raises `RequestError`. After too many wrong tokens the answer says how long to wait; until then no token is compared."""
        require_own_site(caller.headers, self._policy.local)
        if self._policy.token is None:
            return
        shown, client, now = read_token(caller.headers.get("authorization", "")), client_of(caller.address), self._clock()
        failures = self._failures.get(client)
        if shown and failures is not None and now < failures.closed_until:
            wait = math.ceil(failures.closed_until - now)
            message = f"too many wrong tokens from this address; try again in {wait} s"
            raise RequestError(429, message, "too_many_attempts", {"retry-after": str(wait)})
        if not same_secret(shown, self._policy.token):
            if shown:
                self._remember(client, hashlib.sha256(shown.encode()).digest(), now)
            message = "the token is missing or wrong; send it as the API key, or as the password that the page asks for"
            raise RequestError(401, message, "invalid_api_key")

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
    """The key under which a client's failures are recorded."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))


def same_secret(shown: str, token: str) -> bool:
    """Compares digests in constant time, so that timing reveals neither the characters nor the length of the token."""
    return hmac.compare_digest(hashlib.sha256(shown.encode()).digest(), hashlib.sha256(token.encode()).digest())


def read_token(authorization: str) -> str:
    """The token of an Authorization header: `Bearer TOKEN` of API clients, or a browser's password under any user name. Empty: none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return value.strip() if scheme.lower() == "bearer" else ""
    try:
        return base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")[2]
    except ValueError:  # not base64, not ASCII, not UTF-8
        return ""
