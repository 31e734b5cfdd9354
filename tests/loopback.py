"""This machine's own address, for tests that open a port on it or ask there."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import urllib.error
import urllib.request

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
PORTS = range(20_000 + WORKER, 32_768, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
"""Each worker of a test run has its own: none chooses one that another found free and has not opened yet. They are above those of Ray's
workers, and below those that Linux gives to outgoing connections: one of the latter may be taken again before the test opens it, and then
ranks could not meet."""


def free_port() -> int:
    """A port that nobody listens on, chosen at random, so that two test runs hardly ever choose the same one."""
    chance = random.SystemRandom()
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", chance.choice(PORTS)))
            return int(probe.getsockname()[1])


def ask(url: str, data: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers in lower case, body. `headers`: with `_` for `-`."""
    request = urllib.request.Request(url, data, {key.replace("_", "-"): value for key, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, {key.lower(): value for key, value in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, {key.lower(): value for key, value in error.headers.items()}, error.read()
