"""Access control: requests need the token if one is set, and must not come from pages of other sites."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.pages.client_addresses import NO_PROXIES, TrustedProxies, group_address, parse_proxies
from overtone.finetune.pages.request_validation import Caller, RequestError, is_loopback, require_own_site
from overtone.finetune.storage import input_files

TOKEN = "OVERTONE_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the token. There is no command-line option for it, because all users of a machine can read command lines."""
MIN_TOKEN = 16
"""Minimum length of a token; a shorter one could be guessed."""
FREE_TRIES = 5
"""Number of different wrong tokens that a client may send before it has to wait."""
LONGEST_WAIT = 60.0
"""Longest time in seconds that a client has to wait."""
FAILURE_LIFETIME = 900.0
"""Time in seconds after a client's last wrong token after which its failures are removed."""
MAX_CLIENTS = 4096
"""Maximum number of clients whose failures are recorded; the oldest ones are removed first."""


@dataclass(frozen=True)
class AccessPolicy:
    """The conditions for requests."""

    token: str | None = field(repr=False)
    """The required token; None admits all programs on this machine."""
    local: bool
    """True if the server listens on a loopback address only."""
    proxies: TrustedProxies = NO_PROXIES
    """Proxies that name the clients of their requests."""


def load_access_policy(
    host: str, token_file: Path | None, proxies: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> AccessPolicy:
    """Return the policy that the command line selects. Raises `UserError` if other machines could connect without a token, for an invalid
    token, and for a proxy that is not an address."""
    trusted = parse_proxies(proxies)
    token = _read_configured_token(token_file, environment)
    local = host == "localhost" or is_loopback(host)
    if token is None and not local:
        raise UserError(
            f"--host {host} would admit everyone who can reach this address; set {TOKEN}, or give --token-file FILE, with a token of "
            f"{MIN_TOKEN} or more characters, or omit --host to serve only this machine"
        )
    return AccessPolicy(token, local, trusted)


def _read_configured_token(file: Path | None, environment: Mapping[str, str]) -> str | None:
    given, place = environment.get(TOKEN), TOKEN
    if file is not None:
        try:
            given, place = input_files.read_argument(file).decode(), f"--token-file {file}"
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--token-file {file} cannot be read ({error})") from error
    if given is None:
        return None
    if len(token := given.strip()) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"{place}: a token must have {MIN_TOKEN} or more ASCII characters and no spaces; `openssl rand -hex 16` makes one")
    return token


@dataclass
class _Failures:
    """The wrong tokens of one client."""

    tries: int = 0
    last: bytes = b""
    """Digest of the last wrong token. A page that was left open repeats the same one, which does not count as a guess."""
    at: float = 0.0
    closed_until: float = 0.0


class AccessControl:
    """Owns the record of wrong tokens by client: an IPv4 address, or an IPv6 /64 network, because one machine can use a whole network."""

    def __init__(self, policy: AccessPolicy, clock: Callable[[], float] = time.monotonic, public: frozenset[str] = frozenset()) -> None:
        """`public`: paths that need no token."""
        self._policy, self._clock, self._public = policy, clock, public
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def admit(self, caller: Caller) -> bool:
        """Raises `RequestError` for a request without the token. After too many wrong tokens, the error states how long to wait; until then
        no token is compared. Returns False for a public path if other paths need a token."""
        require_own_site(caller.headers, self._policy.local)
        if self._policy.token is None:
            return True
        if caller.path in self._public:
            return False
        token, client, now = read_token(caller.headers.get("authorization", "")), group_address(caller.address), self._clock()
        failures = self._failures.get(client)
        if token and failures is not None and now < failures.closed_until:
            wait = math.ceil(failures.closed_until - now)
            message = f"too many wrong tokens from this address; try again in {wait} s"
            raise RequestError(429, message, "too_many_attempts", {"retry-after": str(wait)})
        if not same_secret(token, self._policy.token):
            if token:
                self._record_failure(client, hashlib.sha256(token.encode()).digest(), now)
            message = "the token is missing or wrong; send it as the API key, or enter it as the password of the page"
            raise RequestError(401, message, "invalid_api_key")
        return True

    def _record_failure(self, client: str, token: bytes, now: float) -> None:
        failures = self._failures.pop(client, _Failures())
        if now > failures.at + FAILURE_LIFETIME:
            failures = _Failures()
        if token != failures.last:
            failures.tries += 1
            wait = min(LONGEST_WAIT, 2.0 ** min(failures.tries - FREE_TRIES, 10)) if failures.tries >= FREE_TRIES else 0.0
            failures.last, failures.at, failures.closed_until = token, now, now + wait
        self._failures[client] = failures
        while len(self._failures) > MAX_CLIENTS:
            self._failures.popitem(last=False)


def same_secret(given: str, token: str) -> bool:
    """Compare digests in constant time, so that timing reveals neither the characters nor the length of the token."""
    return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), hashlib.sha256(token.encode()).digest())


def read_token(authorization: str) -> str:
    """The token of an Authorization header: `Bearer TOKEN` of API clients, or a browser's password with any user name; empty if none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return value.strip() if scheme.lower() == "bearer" else ""
    try:
        return base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")[2]
    except ValueError:  # not base64, not ASCII, not UTF-8
        return ""
