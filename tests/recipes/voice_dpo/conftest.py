"""An untrained voice, exported, and pairs of clips that it spoke."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.voice_clone.conftest import Ready, corpus, fresh, nano, ready, rows_of
from tests.recipes.voice_dpo import spoken_pairs

__all__ = ["corpus", "fresh", "nano", "ready", "rows_of"]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, fresh: Ready) -> Path:
    """A custom_voice export with the speakers anna and bert."""
    return spoken_pairs.export_voice(fresh, "custom_voice", tmp_path_factory.mktemp("voice_dpo") / "export")


@pytest.fixture(scope="session")
def pair_rows() -> Callable[..., list[dict[str, Any]]]:
    return spoken_pairs.make_pairs
