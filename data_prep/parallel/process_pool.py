"""Crash-tolerant process pool: an item that crashes its worker is retried once on its own, then reported as a failure.

Only the parent handles signals. The first Ctrl-C or SIGTERM lets the workers finish their current items, the second exits immediately. If
the parent is killed, the workers exit too.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import re
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from types import FrameType
from typing import Any, Generic, TypeVar

from overtone.finetune.errors import UserError
from overtone.finetune.terminal import print_diagnostic, protect_terminal
from overtone.finetune.worker_start import start_worker

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Make = Callable[[int], AbstractContextManager[Callable[[T], R]]]
"""Called once in each worker with the worker's number; yields the function that processes one item. Must be picklable."""

OnProgress = Callable[[int, Any], None]
"""Called in the parent with the index of an item and a value that its worker passed to `send_progress`."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SYSTEMATIC = 3
"""Number of items at the start of a run that must fail with one error for the cause to count as systematic."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells report it."""


@dataclass(frozen=True)
class Failure:
    """The reason why an item failed; for the caller of `run_items`, the second time."""

    why: str


@dataclass(frozen=True)
class ItemResult(Generic[R_co]):
    """Message from a worker: the result of its current item."""

    value: R_co


@dataclass(frozen=True)
class WrongRequest:
    """Message from a worker that a `UserError` was raised, which would be raised for every item."""

    message: str


Outcome = ItemResult[R_co] | Failure | WrongRequest
"""Outcome of the work on an item, which `unwrap_result` converts for the caller."""


@dataclass(frozen=True)
class ItemProgress:
    """Message from a worker about its current item, before the result."""

    value: Any


def ignore_progress(_index: int, _value: object) -> None:
    """Do nothing: the `OnProgress` of a caller that shows no progress."""


_send_to_parent: Callable[[object], None] | None = None
"""Function that reports the progress of the current item to the parent; None: no item is processed, or nobody receives it (a Ray
worker)."""


def send_progress(value: object) -> None:
    """Report the progress of the current item: for code that runs inside the function of `Make`. `value` must be picklable."""
    if _send_to_parent is not None:
        _send_to_parent(value)


@contextlib.contextmanager
def _progress_goes_to(send: Callable[[object], None]) -> Iterator[None]:
    global _send_to_parent
    before, _send_to_parent = _send_to_parent, send
    try:
        yield
    finally:
        _send_to_parent = before


class StopSignal:
    """Owns the handlers of Ctrl-C and SIGTERM. The first signal sets `requested`; the second raises KeyboardInterrupt.

    Opened on another thread than the main one, it does nothing, since Python allows handlers on the main thread only.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print_diagnostic("stopping after the items in progress; press Ctrl-C again to stop immediately")


class StoppedError(Exception):
    """The user has stopped the work before its end; the message says how far it got. Completed work is kept."""


def report_stopped(how: str) -> int:
    """Report that completed work is kept; returns the exit code."""
    print_diagnostic(f"stopped: {how}; completed work is kept: run the same command again to resume")
    return INTERRUPTED


def run_items(
    items: Sequence[T], make: Make[T, R], workers: int, stop: StopSignal, on_progress: OnProgress = ignore_progress
) -> Iterator[tuple[int, R | Failure]]:
    """Yield (index, result) of each item as it completes; fewer if a stop is requested.

    The caller may append to `items` while it handles a result or a progress: new items are processed next, before those that wait.
    `workers`: maximum number of processes, which are started as items need them; 0 processes the items in this process, without crash
    protection. Raises `UserError` if a worker raised one.
    """
    if not items:
        return iter(())
    return _run_in_process(items, make, stop, on_progress) if workers == 0 else _run_in_workers(items, make, workers, stop, on_progress)


class _Waiting(Generic[T]):
    """Indices of the items that wait, in order, with new ones first."""

    def __init__(self, items: Sequence[T]) -> None:
        self.failures: list[str] = []
        """Failures so far, by `generalize_failure`."""
        self.has_result = False
        self._items, self._known = items, 0
        self._queue: deque[int] = deque()

    def take(self) -> int | None:
        """Return the next index; None if no item waits."""
        self._queue.extendleft(reversed(range(self._known, len(self._items))))
        self._known = len(self._items)
        return self._queue.popleft() if self._queue else None

    def looks_systematic(self) -> bool:
        """Return whether the first items all failed with one error, which is not the machine's. Then these are retried alone before others
        begin, so that the caller can stop."""
        same = len(self.failures) >= SYSTEMATIC and len(set(self.failures)) == 1
        return same and not self.has_result and not is_of_the_machine(self.failures[0])


def _run_in_process(items: Sequence[T], make: Make[T, R], stop: StopSignal, on_progress: OnProgress) -> Iterator[tuple[int, R | Failure]]:
    waiting = _Waiting(items)
    with make(0) as do:
        while not stop.requested and (index := waiting.take()) is not None:
            with _progress_goes_to(functools.partial(on_progress, index)):
                result = attempt_twice(do, items[index])
            yield index, unwrap_result(result)


def _run_in_workers(
    items: Sequence[T], make: Make[T, R], workers: int, stop: StopSignal, on_progress: OnProgress
) -> Iterator[tuple[int, R | Failure]]:
    waiting, suspects = _Waiting(items), deque[int]()
    while True:
        yield from _run_waiting(items, waiting, suspects, make, workers, stop, on_progress)
        if not suspects or stop.requested:
            return
        for _ in range(len(suspects) if waiting.looks_systematic() else 1):
            index = suspects.popleft()
            with _WorkerProcess(make, 0) as worker:  # alone, with all memory available
                worker.begin(index, items[index])
                while isinstance(result := worker.receive(), ItemProgress):
                    on_progress(index, result.value)
            yield index, unwrap_result(result)
        waiting.has_result = True  # the caller has seen the failures and continues


def _run_waiting(
    items: Sequence[T],
    waiting: _Waiting[T],
    suspects: deque[int],
    make: Make[T, R],
    workers: int,
    stop: StopSignal,
    on_progress: OnProgress,
) -> Iterator[tuple[int, R | Failure]]:
    """Yield the results of all waiting items but those that fail, which become suspects."""
    with contextlib.ExitStack() as stack:
        started, free, busy = 0, list[_WorkerProcess[T, R]](), list[_WorkerProcess[T, R]]()
        while True:
            while (free or started < workers) and not (stop.requested or waiting.looks_systematic()):
                if (index := waiting.take()) is None:
                    break
                if not free:
                    free, started = [stack.enter_context(_WorkerProcess(make, started))], started + 1
                busy.append(free.pop(0).begin(index, items[index]))
            if not busy:
                return
            ready = connection.wait([worker.line for worker in busy])  # those that answered or died
            for worker in [worker for worker in busy if worker.line in ready]:
                result = worker.receive()
                if isinstance(result, ItemProgress):
                    on_progress(worker.index, result.value)
                    continue
                busy.remove(worker)
                if isinstance(result, Failure):
                    waiting.failures.append(generalize_failure(result.why))
                    suspects.append(worker.index)
                    worker.restart()
                else:
                    waiting.has_result = True
                    yield worker.index, unwrap_result(result)
                free.append(worker)


def unwrap_result(result: Outcome[R]) -> R | Failure:
    """Return the value or a `Failure`. Raises `UserError` if the worker raised one."""
    if isinstance(result, WrongRequest):
        raise UserError(result.message)
    return result.value if isinstance(result, ItemResult) else result


class _WorkerProcess(Generic[T, R]):
    """Owns one worker process and the pipe to it."""

    def __init__(self, make: Make[T, R], number: int) -> None:
        self.index = -1
        """Index of the current item; -1: none yet."""
        self._make, self._number = make, number
        self.restart()

    def restart(self) -> None:
        """Start the process, or replace one that failed, whose state may be damaged."""
        if self.index >= 0:
            self._end_process()
        context = multiprocessing.get_context("spawn")  # a fork would copy locks held by torch's threads
        self.line, theirs = context.Pipe()
        self._process = context.Process(target=_serve_items, args=(theirs, self._make, self._number))
        resource_tracker.ensure_running()  # starting it later would unblock the signals
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # inherited by the child: a terminal sends Ctrl-C to the whole process group
        try:
            start_worker(self._process)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        theirs.close()  # otherwise the death of the child would go unnoticed

    def begin(self, index: int, item: T) -> _WorkerProcess[T, R]:
        self.index = index
        with contextlib.suppress(OSError):  # the process is dead: `receive` reports it
            self.line.send(item)
        return self

    def receive(self) -> Outcome[R] | ItemProgress:
        """Return the next message about the current item: its progress, or its result."""
        try:
            return self.line.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode or 0
            return Failure(
                f"its process was killed by {signal.Signals(-code).name}" if code < 0 else f"its process exited with code {code}"
            )

    def __enter__(self) -> _WorkerProcess[T, R]:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_process()

    def _end_process(self) -> None:
        self._process.kill()  # safe at any time: its files appear by renaming
        self._process.join()
        self.line.close()


def _serve_items(line: connection.Connection, make: Make[T, R], number: int) -> None:
    """Main loop of the worker: process items until the parent closes the pipe."""
    protect_terminal()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with contextlib.ExitStack() as opened:
        do = open_worker(make, number, opened)
        while True:
            try:
                item = line.recv()
            except EOFError:
                return
            with _progress_goes_to(lambda value: line.send(ItemProgress(value))):
                result = _attempt_item(do, item)
            line.send(result)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)  # the main thread may be inside a model for minutes


def open_worker(make: Make[T, R], number: int, opened: contextlib.ExitStack) -> Callable[[T], R]:
    """Enter the context of `make`. After a `UserError` (a missing package, damaged weights), the returned function raises it for the first
    item: the worker would otherwise die, and the caller would retry its items, one by one, without a reason to report."""
    try:
        return opened.enter_context(make(number))
    except UserError as error:
        message = str(error)

    def refuse(_: T) -> R:
        raise UserError(message)

    return refuse


def attempt_twice(do: Callable[[T], R], item: T) -> Outcome[R]:
    """Process an item; retry once if it fails, since the cause may be temporary."""
    result = _attempt_item(do, item)
    return _attempt_item(do, item) if isinstance(result, Failure) else result


def _attempt_item(do: Callable[[T], R], item: T) -> Outcome[R]:
    try:
        return ItemResult(do(item))
    except UserError as error:
        return WrongRequest(str(error))
    except Exception as error:
        print_diagnostic(traceback.format_exc())
        return Failure(", ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]))


def generalize_failure(why: str) -> str:
    """Return the text of a failure without what differs from item to item: quoted names, paths, numbers."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|\S*/\S*|\d+", "…", why)


def is_of_the_machine(why: str) -> bool:
    """Return whether a failure may be caused by other work on the machine: too little memory, or a process that was killed."""
    return any(sign in why for sign in ("MemoryError", "OutOfMemoryError", "out of memory", "killed by", "workers died"))
