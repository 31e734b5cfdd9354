"""The world of one that in-process tests join, and leave again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune.world import World, join, leave


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    joined = join((), tmp_path)
    yield joined
    leave()
