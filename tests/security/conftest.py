"""What the tests of hostile files have in common."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def time_limit() -> Iterator[None]:
    """An attack without an end fails its test after a minute, also inside of a library that waits for a pipe."""

    def end(*_: object) -> None:
        raise TimeoutError("no end")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 60)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
