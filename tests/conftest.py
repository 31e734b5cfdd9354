"""What all tests share: properties are searched without a stopwatch, since the machine may be busy."""

from __future__ import annotations

import pytest
from hypothesis import settings

# The same examples on every run: a suite that fails now and then teaches people to run it again.
settings.register_profile("busy machine", deadline=None, derandomize=True)
settings.load_profile("busy machine")

SLOW_SECONDS = 1800
"""A slow test that takes longer hangs. When the limit is reached the whole session dies, so a busy machine must not come near it."""

FIRST = ("tests/launch/", "tests/reliability/", "tests/test_readme.py")
"""Files whose tests take long, one or two of them a minute. Last, they would leave one worker of two with nothing to do."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes never become part of an id: what a compressor or a random source wrote may differ between two workers' collections."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
