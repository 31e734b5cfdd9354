"""Waits for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 120


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until the condition holds; fails after `SECONDS`."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
