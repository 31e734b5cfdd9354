"""An untrained voice, exported, and what judges its clips."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.voice_clone.conftest import Ready, corpus, fresh, make_export, nano, ready, rows_of, tiny_speaker_model

__all__ = ["corpus", "fresh", "nano", "ready", "rows_of", "tiny_speaker_model"]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, fresh: Ready) -> Path:
    """A custom_voice export with the speakers anna and bert."""
    return make_export(fresh, "custom_voice", tmp_path_factory.mktemp("voice_grpo") / "export")


@pytest.fixture(scope="session")
def recordings(fresh: Ready) -> Path:
    """Rows with a recording of each speaker."""
    return Path(fresh.config.data.train)  # type: ignore[arg-type]
