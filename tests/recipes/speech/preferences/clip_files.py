"""Judged clips whose files are in a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from overtone.recipes.speech.preferences.pair_selection import ClipRecord
from tests.recipes.speech.preferences.test_pair_selection import make_clip


def write_clip(folder: Path, key: str) -> ClipRecord:
    """A clip whose file is in the folder."""
    clip = make_clip(key)
    path = folder / clip.audio
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(key.encode())
    return clip.model_copy(update={"sha256": hashlib.sha256(key.encode()).hexdigest()})
