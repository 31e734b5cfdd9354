"""Watches the processes of the other ranks on this machine by pidfd: detects immediately that one has ended, and by which signal.

A pidfd becomes readable when its process ends. The parent, the launcher, collects the exit status within a tenth of a second; until then
any process can read it from /proc.
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

from overtone.finetune.monitoring import rank_status_records

Identity = tuple[str, str, str, int]
"""Host name, boot id, process namespace, process id."""


@dataclass(frozen=True)
class ProcessExit:
    """The end of a rank's process."""

    rank: int
    process: int
    signal: str | None
    """Signal that ended it. None: it exited by itself, or the launcher has already collected the status."""
    code: int | None
    """Exit code, if it exited by itself."""


def identify_process() -> Identity:
    """Identity of this process. Containers on one machine may have the same host name and not see each other's processes; different
    machines may have the same host name and namespace number, but each boot has its own id."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return platform.node(), rank_status_records.boot_id(), namespace, os.getpid()


class Peers:
    """Watches the other ranks' processes on this machine; those of other machines are not seen."""

    def __init__(self, rank: int, identities: Sequence[Identity]) -> None:
        """`identities`: those of all ranks, by rank."""
        self._watched: dict[int, tuple[int, int]] = {}
        """File descriptor → rank, process."""
        self._lock = threading.Lock()
        self.deaths: list[ProcessExit] = []
        """Processes that ended, in the order of their detection."""
        own = identities[rank]
        near = [(number, other[-1]) for number, other in enumerate(identities) if number != rank and other[:-1] == own[:-1]]
        self.all_near = len(near) == len(identities) - 1
        for number, process in near:
            try:
                self._watched[os.pidfd_open(process)] = number, process
            except (OSError, AttributeError):
                # No support for pidfds, no file descriptors left, or no such process: it replied a moment ago, so it is not visible rather
                # than dead. Its missing heartbeat will show its end later.
                self.all_near = False

    def wait(self, seconds: float) -> bool:
        """Wait until a process ends, for at most `seconds`; returns whether any process has ended so far."""
        poll = select.poll()
        for descriptor in [*self._watched]:
            poll.register(descriptor, select.POLLIN)
        with contextlib.suppress(OSError):  # closed meanwhile
            for descriptor, _ in poll.poll(1000 * seconds):
                with self._lock:
                    if descriptor in self._watched:
                        number, process = self._watched.pop(descriptor)
                        self.deaths.append(ProcessExit(number, process, *_status(process)))
                        os.close(descriptor)
        return bool(self.deaths)

    def close(self) -> None:
        with self._lock:
            for descriptor in self._watched:
                os.close(descriptor)
            self._watched.clear()


def _status(process: int) -> tuple[str | None, int | None]:
    """(signal, exit code) of a process that has ended; (None, None) once its parent has collected them."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        if fields[0] == "Z":
            status = int(fields[-1])
            if os.WIFSIGNALED(status):
                return signal.Signals(os.WTERMSIG(status)).name, None
            return None, os.WEXITSTATUS(status)
    return None, None
