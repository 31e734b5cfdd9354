"""The process group of one that in-process tests join, and leave again; and recipes of the tests that count as built in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.recipe import discovery
from tests.finetune import tiny


@pytest.fixture(autouse=True)
def test_recipes_are_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may name the recipes of these tests, which are about exports and checkpoints (which names count: recipe/test_discovery.py)."""
    names = [*discovery.built_in_recipes(), str(tiny.FOLDER), str(tiny.FOLDER.parent / "causal_lm")]
    monkeypatch.setattr(discovery, "built_in_recipes", lambda: names)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    joined = join((), tmp_path)
    yield joined
    leave()
