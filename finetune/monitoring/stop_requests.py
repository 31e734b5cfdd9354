"""Stop requests: signals, the STOP file, the time budget and preemption notices, and the agreement of all ranks to stop."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from overtone.finetune.distributed.process_group import World, gather_from_ranks, sum_over_ranks
from overtone.finetune.storage import files

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STOP_FILE = "STOP"


def get_no_notice() -> str | None:
    """For a machine that is never preempted."""
    return None


def ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """A handler on the main thread for a signal that is handled on another one."""


class SignalListener:
    """While open, passes each of these signals to `received`, on a separate thread: a Python signal handler would only run after the main
    thread returns from a collective, which may never happen. May be nested; the outer one then receives nothing until the inner one closes.

    A SIGHUP that the process ignores (as under nohup) stays ignored.

    Opened on another thread than the main one (Ray trains on one), it does nothing, since Python allows handlers on the main thread only.
    """

    def __init__(
        self, numbers: Sequence[int], received: Callable[[int], None], handler: Callable[[int, FrameType | None], None] = ignore_signal
    ) -> None:
        """`handler`: what the main thread calls besides, when it can."""
        self._numbers, self._received, self._handler, self._is_open = numbers, received, handler, False

    def __enter__(self) -> SignalListener:
        self._is_open = threading.current_thread() is threading.main_thread()
        if self._is_open:
            self._read, self._write = socket.socketpair()
            self._write.setblocking(False)
            handled = [number for number in self._numbers if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handler) for number in handled}
            self._wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_open:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._write.close()  # the thread reads end-of-file and returns
            self._thread.join()
            self._read.close()

    def _listen(self) -> None:
        while data := self._read.recv(64):
            for number in data:
                if number in self._numbers:
                    self._received(number)


class StopRequests:
    """While open, collects this rank's requests to stop: SIGTERM, SIGINT, SIGUSR1, a file STOP in the run's folder, a used-up time budget,
    or a preemption notice.

    A second signal ends the process immediately, and so does SIGHUP, after which the output of the run may have no reader.
    """

    def __init__(
        self,
        folder: Path | None = None,
        minutes: float | None = None,
        notice: Callable[[], str | None] = get_no_notice,
        keeps_process: bool = False,
    ) -> None:
        """`minutes`: wall-clock budget, counted from now. `notice`: returns why the machine will be preempted, once that is known; it is
        called on every rank between steps, so it may be collective. `keeps_process`: the process does more than this run, such as a
        notebook's, so a second SIGINT raises `KeyboardInterrupt` instead of ending it."""
        self._keeps_process, self._interrupts = keeps_process, 0
        self._stop_file = None if folder is None else folder / STOP_FILE
        self._minutes, self._opened, self._notice = minutes, time.monotonic(), notice
        self._signals = SignalListener((*SIGNALS, signal.SIGHUP), self._on_signal, self._on_main_thread)
        self.received: str | None = None
        """Name of the first signal that arrived."""
        self._received_at = 0.0
        self.end: Callable[[int], None] = lambda number: os._exit(128 + number)
        """Ends the process, after a second signal or SIGHUP."""

    def __enter__(self) -> StopRequests:
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.__exit__()

    def poll(self) -> tuple[str, float | None] | None:
        """(reason to stop, seconds since the signal arrived or None), or None if there is no request. The age of a signal matters, since
        the launcher kills the processes some seconds after it."""
        notice = self._notice()  # always called first: it may be collective, and other ranks may have no other request
        if self.received is not None:
            return self.received, time.monotonic() - self._received_at
        if self._stop_file is not None and self._stop_file.exists():
            return f"the file {self._stop_file}", None
        if self._minutes is not None and time.monotonic() - self._opened > 60 * self._minutes:
            return f"run.deadline_minutes: {self._minutes}", None
        return None if notice is None else (notice, None)

    def remove_stop_file(self, stop: AgreedStop, world: World) -> None:
        """Remove the STOP file, or the next launch would stop after its first step. Only the rank that reported it does so."""
        if self._stop_file is not None and stop.rank == world.rank:
            files.discard(self._stop_file)

    def record_signal(self, name: str) -> None:
        self.received, self._received_at = name, time.monotonic()

    def _on_main_thread(self, number: int, _: FrameType | None) -> None:
        self._interrupts += number == signal.SIGINT
        if self._keeps_process and self._interrupts > 1:
            raise KeyboardInterrupt

    def _on_signal(self, number: int) -> None:
        if self._keeps_process and self.received is not None and number == signal.SIGINT:
            return
        if self.received is not None or number == signal.SIGHUP:
            self.end(number)
        self.record_signal(signal.Signals(number).name)


@dataclass(frozen=True)
class AgreedStop:
    """A stop that all ranks have agreed on."""

    reason: str
    rank: int
    """Rank whose request it is."""
    until: float
    """Time on this process's monotonic clock at which the launcher kills the processes; infinite if it does not."""


def agree_to_stop(world: World, requests: StopRequests, grace_seconds: float) -> AgreedStop | None:
    """A stop of all ranks if any rank has a request; otherwise None. Collective: call on every rank."""
    own = requests.poll()
    if not sum_over_ranks(world, [float(own is not None)])[0]:
        return None
    everyone = gather_from_ranks(world, own)
    rank = next(number for number, each in enumerate(everyone) if each is not None)
    ages = [each[1] for each in everyone if each is not None and each[1] is not None]
    until = time.monotonic() + grace_seconds - max(ages) if ages else math.inf
    return AgreedStop(f"stopped by {everyone[rank][0]} on rank {rank}", rank, until)


def find_save_obstacle(world: World, stop: AgreedStop, seconds: float) -> str | None:
    """Return why a save that takes `seconds` must not start: on some rank it would not finish before the launcher kills it. None if it may
    start.

    Collective: call on every rank.
    """
    if math.isinf(stop.until):
        return None
    takes, left = max(gather_from_ranks(world, [seconds, stop.until - time.monotonic()]), key=lambda each: each[0] - each[1])
    if takes <= left:
        return None
    return f"not saved: the last save took {takes:.1f} s, and {max(0.0, left):.1f} s of checkpoint.grace_seconds are left"
