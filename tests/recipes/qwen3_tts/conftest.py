"""The fixtures of `voice_clone`, which trains this model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.voice_clone.conftest import (
    Ready,
    babbler,
    corpus,
    export,
    fresh,
    make_export,
    mini,
    nano,
    one_voice,
    ready,
    rows_of,
    tiny_speaker_model,
    two_voices,
)

__all__ = ["babbler", "corpus", "export", "fresh", "mini", "nano", "one_voice", "ready", "rows_of", "tiny_speaker_model", "two_voices"]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory, fresh: Ready) -> Path:
    """A custom_voice export of the untrained model with the speakers anna and bert."""
    return make_export(fresh, "custom_voice", tmp_path_factory.mktemp("qwen3_tts") / "export")
