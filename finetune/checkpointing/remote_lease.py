"""Run lock on remote storage: an object at a URL names the run that owns it, and is renewed while that run is alive.

Remote file systems have no locks. The object is created only if it does not exist, where the file system supports that; an owner is alive
if its object changes, as measured by the reader's clock alone. Limits: a run that hangs for longer than SILENCE_SECONDS may lose the lock
and notice it only afterwards; and two runs that take over a dead run's lock within the same second, or that create it on a file system
without conditional writes, may both assume that they own it, until the first of them checks again.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.errors import UserError
from overtone.finetune.storage import remote
from overtone.finetune.terminal import print_diagnostic

if TYPE_CHECKING:
    from pydantic import JsonValue

OBJECT = "owner.json"
BEAT_SECONDS = 5.0
LOOK_SECONDS = 1.0
SILENCE_SECONDS = 30.0
"""An owner that has not renewed its object for this long is considered dead."""


class Lease:
    """While open, this process owns the lock of `url`. Opening raises `UserError` naming the owner if another run owns it."""

    def __init__(self, url: RemoteAddress, run: str) -> None:
        self._url, self._object = url, url.child(OBJECT)
        self._owner = {"run": run, "host": platform.node(), "process": os.getpid(), "since": time.strftime("%F %T")}
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        if not remote.create(self._object, self._content()):
            self._await_silence()
            remote.write(self._object, self._content())
            time.sleep(LOOK_SECONDS)  # another run may take over the same lock at this moment
            self.require()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        self._thread.join()
        with contextlib.suppress(UserError):  # lost or unreachable: then the lock expires by itself
            self.require()
            remote.remove_file(self._object)

    def require(self) -> None:
        """Raises `UserError` if another run has taken over the lock."""
        found = _read(remote.read(self._object))
        if found.get("token") != self._token:
            raise UserError(f"{_describe_owner(found)} acquired the lock of {self._url}; stop one of the two runs, or give it another URL")

    def _await_silence(self) -> None:
        """Wait until the lock expires. Raises `UserError` as soon as its owner renews it."""
        seen = self._look()
        print_diagnostic(
            f"{self._url} is locked by {_describe_owner(_read(seen or b''))}; "
            f"checking for {SILENCE_SECONDS:.0f} s whether that run is alive"
        )
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline and seen is not None:
            time.sleep(LOOK_SECONDS)
            now = self._look()
            if now is not None and now != seen:  # renewed, or taken over by another run that waited
                named = _describe_owner(_read(now))
                raise UserError(f"{self._url} is in use by a running process ({named}); stop it, or give this run another URL")
            seen = now

    def _look(self) -> bytes | None:
        """The content of the lock object; None if it does not exist."""
        return remote.read(self._object) if OBJECT in remote.list_files(self._url) else None

    def _renew(self) -> None:
        while not self._left.wait(BEAT_SECONDS):
            with contextlib.suppress(UserError):  # lost, which the next upload reports; or unreachable, and retried
                self.require()
                self._beats += 1
                remote.write(self._object, self._content())

    def _content(self) -> bytes:
        return json.dumps({**self._owner, "token": self._token, "beats": self._beats}, indent=1).encode()


def _read(content: bytes) -> dict[str, JsonValue]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _describe_owner(owner: Mapping[str, JsonValue]) -> str:
    return f"{owner.get('run')}, process {owner.get('process')} on {owner.get('host')} since {owner.get('since')}"
