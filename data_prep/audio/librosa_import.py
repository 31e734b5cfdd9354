"""Safe import of librosa: modules that numba compiles at import are imported by one process at a time.

numba caches compiled code in two files, and two processes that compile simultaneously can leave one file of each. Every process that
loads such a pair crashes with a segmentation fault (numba issue 10128, open as of 0.68).
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from overtone.finetune.storage import files
from overtone.finetune.storage.demo_models import cache

COMPILED = ("librosa.util.utils", "librosa.core.audio", "librosa.core.pitch")
"""The modules that use `guvectorize`, except `librosa.beat`, which is not needed here."""


@functools.cache
def import_librosa() -> ModuleType:
    """Import and return `librosa`. The first process on a machine compiles for some seconds; the others wait for its files."""
    with files.hold_lock(cache() / "librosa.lock"):
        for name in COMPILED:
            importlib.import_module(name)  # noqa: TID251 - modules of librosa
    return importlib.import_module("librosa")  # noqa: TID251 - an installed package
