"""The processes of the other ranks on this machine, whose end is seen at once, and with its signal where the system still knows it.

A pidfd becomes readable when its process ends. Its exit status belongs to the parent, the launcher, which collects it within a tenth of a
second; until then anyone may read it from /proc.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finetune import vital_signs

Identity = tuple[str, str, str, int]
"""Name of the machine, which start of it, process namespace, process."""


@dataclass(frozen=True)
class Death:
    """The end of a rank's process."""

    rank: int
    process: int
    signal: str | None
    """What ended it. None: nothing did, or the launcher was faster in asking."""
    code: int | None
    """Exit code, if it ended by itself."""


def identity() -> Identity:
    """Of this process. Containers on one machine may share its name and still not see each other's processes; machines may have the same
    name, and the first process namespace has the same number on all of them, but each start of a machine has its own id."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return platform.node(), vital_signs.boot_id(), namespace, os.getpid()


class Peers:
    """Watches the other ranks' processes on this machine; those of other machines are not seen."""

    def __init__(self, rank: int, identities: Sequence[Identity]) -> None:
        """`identities` of all ranks, by rank."""
        self._watched: dict[int, tuple[int, int]] = {}
        """File descriptor → rank, process."""
        self._lock = threading.Lock()
        self.deaths: list[Death] = []
        """In the order in which they were seen."""
        own = identities[rank]
        near = [(number, other[-1]) for number, other in enumerate(identities) if number != rank and other[:-1] == own[:-1]]
        self.all_near = len(near) == len(identities) - 1
        for number, process in near:
            try:
                self._watched[os.pidfd_open(process)] = number, process
            except (OSError, AttributeError):
                # A Python or a system without pidfds, none left, or no such process: it answered a moment ago, so it is out of sight rather
                # than dead. Heartbeats notice its end, later.
                self.all_near = False

    def wait(self, seconds: float) -> bool:
        """Until a process ends, but not for longer; returns whether one has ended, now or before."""
        poll = select.poll()
        for descriptor in [*self._watched]:
            poll.register(descriptor, select.POLLIN)
        with contextlib.suppress(OSError):  # closed meanwhile
            for descriptor, _ in poll.poll(1000 * seconds):
                with self._lock:
                    if descriptor in self._watched:
                        number, process = self._watched.pop(descriptor)
                        self.deaths.append(Death(number, process, *_status(process)))
                        os.close(descriptor)
        return bool(self.deaths)

    def close(self) -> None:
        with self._lock:
            for descriptor in self._watched:
                os.close(descriptor)
            self._watched.clear()


def _status(process: int) -> tuple[str | None, int | None]:
    """Signal and exit code of a process that has ended, until its parent collects them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        if fields[0] == "Z":
            status = int(fields[-1])
            if os.WIFSIGNALED(status):
                return signal.Signals(os.WTERMSIG(status)).name, None
            return None, os.WEXITSTATUS(status)
    return None, None
