"""One run at a time in a place elsewhere: an object there names the run that has it, and is renewed as long as that run lives.

File systems elsewhere have no locks. The object is created on the condition that there is none, where the file system can; whether its
owner is alive shows in its changing, by nobody's clock but the reader's. What this cannot do: a run that stands still for longer than
SILENCE_SECONDS may lose the place to another and only see it afterwards; and two that take over a dead run's place within the same second,
or create it on a file system without conditions, may both believe that they have it, until the first of them looks again.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import sys
import threading
import time
from types import TracebackType
from typing import Any

from finetune import remote
from finetune.errors import UserError

OBJECT = "owner.json"
BEAT_SECONDS = 5.0
LOOK_SECONDS = 1.0
SILENCE_SECONDS = 30.0
"""An owner that has not renewed its object for so long is taken for dead."""


class Lease:
    """While open, `url` is this process's to write to. Opening raises `UserError` naming the owner if another one has it."""

    def __init__(self, url: str, run: str) -> None:
        self._url, self._object = url, f"{url}/{OBJECT}"
        self._owner = {"run": run, "host": platform.node(), "process": os.getpid(), "since": time.strftime("%F %T")}
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        if not remote.create(self._object, self._content()):
            self._await_silence()
            remote.write(self._object, self._content())
            time.sleep(LOOK_SECONDS)  # another one may have waited for the same silence
            self.require()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        self._thread.join()
        with contextlib.suppress(UserError):  # gone, or out of reach: then it falls silent
            self.require()
            remote.remove_file(self._object)

    def require(self) -> None:
        """Raises `UserError` if the place has been taken over."""
        found = _read(remote.read(self._object))
        if found.get("token") != self._token:
            raise UserError(f"{self._url} has been taken over by {_named(found)}; stop one of the two, or give it another place")

    def _await_silence(self) -> None:
        """Wait until the owner is gone. Raises `UserError` as soon as it shows that it lives."""
        seen = self._look()
        print(
            f"{self._url} belongs to {_named(_read(seen or b''))}; waiting {SILENCE_SECONDS:.0f} s for a sign of life",
            file=sys.stderr,
            flush=True,
        )
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline and seen is not None:
            time.sleep(LOOK_SECONDS)
            now = self._look()
            if now is not None and now != seen:  # renewed, or taken over by another one that waited
                named = _named(_read(now))
                raise UserError(f"{self._url} belongs to a run that is going on ({named}); stop it, or give this one another place")
            seen = now

    def _look(self) -> bytes | None:
        """The object, or None if there is none."""
        return remote.read(self._object) if OBJECT in remote.find(self._url) else None

    def _renew(self) -> None:
        while not self._left.wait(BEAT_SECONDS):
            with contextlib.suppress(UserError):  # lost, which the next upload tells; or out of reach, and then it is tried again
                self.require()
                self._beats += 1
                remote.write(self._object, self._content())

    def _content(self) -> bytes:
        return json.dumps({**self._owner, "token": self._token, "beats": self._beats}, indent=1).encode()


def _read(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _named(owner: dict[str, Any]) -> str:
    return f"{owner.get('run')}, process {owner.get('process')} on {owner.get('host')} since {owner.get('since')}"
