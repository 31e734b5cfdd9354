"""Ends the rendering of a chat template that takes too long or fills the memory.

A template is a program of whoever made the model: the sandbox of transformers bounds neither nested loops nor the length of a text. A
thread watches all renderings of this process, and raises an exception in the thread of one that exceeds a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 10.0
"""Published templates take milliseconds."""
BYTES = 2 * 2**30
"""Maximum growth of the process's memory meanwhile, in bytes."""
LOOK_SECONDS = 0.1
LONGEST_TEXT = 2**26
"""Characters of a rendered chat: more than any model reads."""


class RenderLimitError(Exception):
    """A rendering that was ended."""


class _TooSlowError(RenderLimitError):
    def __str__(self) -> str:
        return f"it had not ended after {SECONDS:g} s, which no usual template needs; set options.chat_template to another one"


class _TooLargeError(RenderLimitError):
    def __str__(self) -> str:
        return f"the memory had grown by more than {BYTES / 2**30:g} GiB meanwhile; set options.chat_template to another one"


@dataclass
class _Rendering:
    began: float
    memory: int
    """Memory of the process at the beginning, in bytes."""
    ended: bool = False
    """True if the exception was raised in its thread."""


@dataclass
class _Watch:
    """The renderings of one process by thread, and the thread that looks at them, which a forked process does not inherit."""

    process: int = field(default_factory=os.getpid)
    renderings: dict[int, _Rendering] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def look(self) -> None:
        while True:
            with self.changed:
                while not self.renderings:
                    self.changed.wait()
            time.sleep(LOOK_SECONDS)
            with self.changed:
                memory = _read_resident_bytes()
                for thread, rendering in self.renderings.items():
                    late = time.monotonic() - rendering.began > SECONDS
                    if not rendering.ended and (late or memory - rendering.memory > BYTES):
                        rendering.ended = True
                        _raise_in(thread, _TooSlowError if late else _TooLargeError)


_watch: _Watch | None = None
_refused: dict[str, RenderLimitError] = {}
_starting = threading.Lock()


def check_length(text: str) -> None:
    """Raises `RenderLimitError` for a text that would take the tokenizer minutes."""
    if len(text) > LONGEST_TEXT:
        raise RenderLimitError(
            f"its text has {len(text):,} characters, at most {LONGEST_TEXT:,} are accepted; set options.chat_template to another template, "
            "or split the row"
        )


@contextlib.contextmanager
def limit_rendering(template: str) -> Iterator[None]:
    """While open, for the rendering of a template, at most for `SECONDS` and `BYTES`. Raises `RenderLimitError` between two operations of
    the template; one operation is not interrupted. A template that exceeded a limit is refused at once the next time: a file has many rows.
    """
    if template in _refused:
        raise _refused[template]
    watch, thread = _find_watch(), threading.get_ident()
    with watch.changed:
        watch.renderings[thread] = _Rendering(time.monotonic(), _read_resident_bytes())
        watch.changed.notify()
    try:
        yield
    except RenderLimitError as error:
        _refused[template] = error.with_traceback(None)
        raise
    finally:
        with watch.changed:
            if watch.renderings.pop(thread).ended:
                _raise_in(thread, None)  # if it has not arrived yet, it must not arrive later


def _read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _find_watch() -> _Watch:
    global _watch
    with _starting:
        if _watch is None or _watch.process != os.getpid():
            _watch = _Watch()
            threading.Thread(target=_watch.look, name="watch of chat templates", daemon=True).start()
        return _watch


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise an exception in another thread at its next operation, or take back one that was not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind) if kind else None)
