"""A cache of what a model computes from reference clips: a voice is usually cloned for many texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from overtone.finetune.storage import files

CACHED_CLIPS = 64
"""Number of clips whose results are cached."""

Encoded = TypeVar("Encoded")


class ReferenceClips(Generic[Encoded]):
    """Owns the results of the latest clips. Their key is the content of the file, which may change under the same name."""

    def __init__(self, encode: Callable[[Path], Encoded]) -> None:
        self._encode = encode
        self._cached: dict[str, Encoded] = {}

    def get(self, clip: Path) -> Encoded:
        """The result of `encode`, computed once for each content of a clip."""
        key = files.digest(clip)
        if key not in self._cached:
            encoded = self._encode(clip)
            if len(self._cached) >= CACHED_CLIPS:
                del self._cached[next(iter(self._cached))]
            self._cached[key] = encoded
        return self._cached[key]
