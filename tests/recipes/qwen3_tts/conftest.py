"""The fixtures of `voice_clone`, which trains this model."""

from __future__ import annotations

from tests.recipes.voice_clone.conftest import (
    babbler,
    corpus,
    export,
    fresh,
    mini,
    nano,
    one_voice,
    ready,
    rows_of,
    tiny_speaker_model,
    two_voices,
)

__all__ = ["babbler", "corpus", "export", "fresh", "mini", "nano", "one_voice", "ready", "rows_of", "tiny_speaker_model", "two_voices"]
