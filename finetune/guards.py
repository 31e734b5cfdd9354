"""What may stop a run: a request of a person or of the machine's owner, or a number that is not one."""

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
from statistics import median

from finetune import files
from finetune.errors import UserError
from finetune.world import World, gather, sums

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STOP_FILE = "STOP"


Recent = tuple[tuple[float, float], ...]
"""(loss, gradient norm) of the last updates, the newest last; the same on all ranks."""
WINDOW = 50
"""So many of them say what is usual."""
FEWEST = 10
"""With fewer, nothing is unusual yet."""


class NotFiniteError(UserError):
    """The loss or the gradient is NaN or infinite. Raised before the update, so the last commit and the weights stay clean."""

    reason = "not finite"
    """As `exit.json` tells it."""


class SpikeError(NotFiniteError):
    """The loss or the gradient is finite, but far beyond the usual (`train.spike`), and dealt with alike."""

    reason = "spike"


def remember(recent: Recent, loss: float, norm: float) -> Recent:
    """With one update more."""
    return (*recent, (loss, norm))[-WINDOW:]


def unusual(loss: float, norm: float, recent: Recent, factor: float | None) -> str | None:
    """What is more than `factor` times its median over the `recent` updates, in words."""
    if factor is None or len(recent) < FEWEST:
        return None
    losses, norms = zip(*recent, strict=True)
    for name, value, usual in (("loss", loss, median(losses)), ("gradient norm", norm, median(norms))):
        if value > factor * usual:
            return f"{name} {value:.4g} is more than train.spike: {factor:g} times the usual {usual:.4g} (median of {len(recent)} updates)"
    return None


def spiked(step: int, problem: str, rows: list[str]) -> SpikeError:
    """`rows`: where the step's samples stand, of all ranks."""
    return SpikeError(
        f"step {step}: {problem}; the update was not applied. Its rows: {', '.join(rows)}. "
        "Look at them, or raise train.spike; the same command goes on from the last checkpoint"
    )


def is_finite(loss: float, norm: float) -> bool:
    """All ranks see the same reduced loss and norm, so all of them skip or stop, or none."""
    return math.isfinite(loss) and math.isfinite(norm)


def not_finite(step: int, loss: float, norm: float, rows: list[str]) -> NotFiniteError:
    """`rows`: where the step's samples stand, of all ranks."""
    return NotFiniteError(
        f"step {step}: loss {loss}, gradient norm {norm}; the update was not applied. "
        f"Its rows: {', '.join(rows)}. Look at them, or lower train.lr; the same command goes on from the last checkpoint"
    )


def check_measured(step: int, loss: float) -> None:
    """As `check_finite`, for an evaluation: such a loss could neither be compared nor stand in a checkpoint."""
    if not math.isfinite(loss):
        raise NotFiniteError(
            f"step {step}: validation loss {loss}; look at data.val, or lower train.lr; the same command goes on from the last checkpoint"
        )


def check_sound(step: int, poisoned: list[str]) -> None:
    """Refuse to commit what holds a number that is not one. All ranks are given the same names."""
    if poisoned:
        raise NotFiniteError(
            f"step {step}: {', '.join(sorted(poisoned)[:5])} ({len(poisoned)} in all) hold NaN or infinity, so this checkpoint was not "
            "committed; lower train.lr; the same command goes on from the last one"
        )


def check_reached(unreached: list[str]) -> None:
    """A trained parameter without a gradient has no optimizer state, so no checkpoint could be made: better told at the first step."""
    if unreached:
        raise UserError(
            f"the loss does not reach {', '.join(unreached[:5])} ({len(unreached)} in all), which would be trained; "
            "freeze them (the recipe's `trainable`, or model.lora.targets)"
        )


def no_notice() -> str | None:
    return None


class Signals:
    """While open, gives each signal of these numbers to `received`, on a thread: a handler of Python's own would wait until a collective
    of the main thread returns, which it may never do. May be opened inside another one, which then waits for it to close.

    A SIGHUP that the process ignores, as nohup has it, stays ignored.

    Opened on another thread than the main one (Ray trains on one), it leaves the signals to the owner of the process, as Python wants it.
    """

    def __init__(self, numbers: Sequence[int], received: Callable[[int], None]) -> None:
        self._numbers, self._received, self._is_open = numbers, received, False

    def __enter__(self) -> Signals:
        self._is_open = threading.current_thread() is threading.main_thread()
        if self._is_open:
            self._read, self._write = socket.socketpair()
            self._write.setblocking(False)
            heeded = [number for number in self._numbers if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, lambda *_: None) for number in heeded}
            self._wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_open:
            signal.set_wakeup_fd(self._wakeup)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._write.close()  # the thread reads the end and ends
            self._thread.join()
            self._read.close()

    def _listen(self) -> None:
        while data := self._read.recv(64):
            for number in data:
                if number in self._numbers:
                    self._received(number)


class StopRequests:
    """While open, notes whatever asks this rank to stop: SIGTERM, SIGINT, SIGUSR1, a file STOP in the run's folder, a spent time budget,
    word of whoever lends the machine.

    A second signal ends the process at once, and so does SIGHUP, after which nobody may read what a run prints.
    """

    def __init__(self, folder: Path | None = None, minutes: float | None = None, notice: Callable[[], str | None] = no_notice) -> None:
        """`minutes`: wall-clock budget, counted from now. `notice`: why the machine will be taken away, once it is known; it is called on
        every rank between steps, so it may be collective."""
        self._stop_file = None if folder is None else folder / STOP_FILE
        self._minutes, self._opened, self._notice = minutes, time.monotonic(), notice
        self._signals = Signals((*SIGNALS, signal.SIGHUP), self._on_signal)
        self.received: str | None = None
        """The signal that came."""
        self._received_at = 0.0
        self.end: Callable[[int], None] = lambda number: os._exit(128 + number)
        """Ends the process, after a second signal or SIGHUP."""

    def __enter__(self) -> StopRequests:
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.__exit__()

    def asked(self) -> tuple[str, float | None] | None:
        """What asks this rank to stop, if anything does; and seconds since a signal came, after which the launcher does not wait long."""
        notice = self._notice()  # first of all, whatever else asks here: on other ranks it may be the only one
        if self.received is not None:
            return self.received, time.monotonic() - self._received_at
        if self._stop_file is not None and self._stop_file.exists():
            return f"the file {self._stop_file}", None
        if self._minutes is not None and time.monotonic() - self._opened > 60 * self._minutes:
            return f"run.deadline_minutes: {self._minutes}", None
        return None if notice is None else (notice, None)

    def done(self, stop: Stop, world: World) -> None:
        """Take the STOP file away, or the next launch would stop at its first step. One rank does, since all may see the same file."""
        if self._stop_file is not None and stop.rank == world.rank:
            files.discard(self._stop_file)

    def note(self, name: str) -> None:
        self.received, self._received_at = name, time.monotonic()

    def _on_signal(self, number: int) -> None:
        if self.received is not None or number == signal.SIGHUP:
            self.end(number)
        self.note(signal.Signals(number).name)


@dataclass(frozen=True)
class Stop:
    """What all ranks have agreed on."""

    reason: str
    rank: int
    """Whose request it is."""
    until: float
    """On this process' monotonic clock: when the launcher kills what is left. Infinite where nobody will."""


def agree_to_stop(world: World, requests: StopRequests, grace_seconds: float) -> Stop | None:
    """A stop for all ranks if any rank was asked for one. Collective: call on every rank."""
    asked = requests.asked()
    if not sums(world, [float(asked is not None)])[0]:
        return None
    everyone = gather(world, asked)
    rank = next(number for number, each in enumerate(everyone) if each is not None)
    ages = [each[1] for each in everyone if each is not None and each[1] is not None]
    until = time.monotonic() + grace_seconds - max(ages) if ages else math.inf
    return Stop(f"stopped by {everyone[rank][0]} on rank {rank}", rank, until)


def too_late(world: World, stop: Stop, seconds: float) -> str | None:
    """Why a save that takes `seconds` must not begin, if on any rank it could not end before the launcher kills.

    Collective: call on every rank.
    """
    if math.isinf(stop.until):
        return None
    takes, left = max(gather(world, [seconds, stop.until - time.monotonic()]), key=lambda each: each[0] - each[1])
    if takes <= left:
        return None
    return f"not saved: the last save took {takes:.1f} s, and {max(0.0, left):.1f} s of checkpoint.grace_seconds are left"
