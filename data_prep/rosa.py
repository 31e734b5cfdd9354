"""The one door to librosa: its parts that numba compiles at import are imported by one process at a time.

numba keeps what it compiled in two files, and two processes that compile at the same moment can leave one file of each. Every process
that loads such a pair dies of a segmentation fault, at once and ever after (numba issue 10128, open as of 0.68).
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from finetune import files
from finetune.shipped import cache

COMPILED = ("librosa.util.utils", "librosa.core.audio", "librosa.core.pitch")
"""The modules with a `guvectorize`, but for `librosa.beat`, which nothing here needs."""


@functools.cache
def import_librosa() -> ModuleType:
    """The `librosa` package. The first process on a machine compiles, which takes seconds, and the others wait for its files."""
    with files.alone(cache() / "librosa.lock"):
        for name in COMPILED:
            importlib.import_module(name)
    return importlib.import_module("librosa")
