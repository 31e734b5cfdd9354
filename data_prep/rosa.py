"""The one door to librosa: its parts that numba compiles at import are imported by one process at a time.

numba keeps what it compiled in two files, and two processes that compile at the same moment can leave one file of each. Every process
that loads such a pair dies of a segmentation fault, at once and ever after (numba issue 10128, open as of 0.68).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from finetune.shipped import cache

COMPILED = ("librosa.util.utils", "librosa.core.audio", "librosa.core.pitch")
"""The modules with a `guvectorize`, but for `librosa.beat`, which nothing here needs."""


@functools.cache
def import_librosa() -> ModuleType:
    """The `librosa` package. The first process on a machine compiles, which takes seconds, and the others wait for its files."""
    with _alone(cache() / "librosa.lock"):
        for name in COMPILED:
            importlib.import_module(name)
    return importlib.import_module("librosa")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Of this user's processes, one is in here. A home that cannot be written holds no cache of numba's either."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("w")
    except OSError:
        yield
        return
    with stream:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
