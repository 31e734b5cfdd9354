"""Waits of tests for other processes, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def within(seconds: float, happens: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.02)
    return happens()


def ended(pid: int) -> bool:
    """A process that nobody has waited for yet counts as ended."""
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
