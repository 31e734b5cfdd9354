"""The fixtures of `voice_clone`, the recipe that uses this library."""

from __future__ import annotations

from tests.recipes.voice_clone.conftest import babbler, corpus, export, fresh, nano, rows_of, tiny_speaker_model, two_voices

__all__ = ["babbler", "corpus", "export", "fresh", "nano", "rows_of", "tiny_speaker_model", "two_voices"]
