"""Work on many items in several processes, any of which may die: an item that kills its worker is tried once more alone, then given up.

Signals are for the parent only. The first Ctrl-C or SIGTERM lets the workers finish what they have in hand, the second leaves at once. If
the parent itself is killed, the workers see it and leave too.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from types import FrameType
from typing import Any, Generic, TypeVar

from finetune.errors import UserError

T = TypeVar("T")
R = TypeVar("R")
Make = Callable[[int], AbstractContextManager[Callable[[T], R]]]
"""Called once in each worker with the worker's number; gives what does one item. Has to be picklable."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 130
"""Exit code of what Ctrl-C stopped, as shells have it."""


@dataclass(frozen=True)
class Failure:
    """An item that could not be done, twice."""

    why: str


@dataclass(frozen=True)
class Result(Generic[R]):
    """What a worker sends back: one of the three. `told` says it to the caller."""

    value: R | None = None
    failure: str = ""
    wrong_request: str = ""
    """A `UserError`, which would come from every item."""


class Stop:
    """Owns the handlers of Ctrl-C and SIGTERM. `asked` turns true with the first; the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("stopping: the items in hand are finished first; once more to leave at once", file=sys.stderr, flush=True)


def tell_stopped(how: str) -> int:
    """Say that nothing is lost; returns the exit code."""
    print(f"stopped: {how}; nothing that is done is lost: run the same command again to go on", file=sys.stderr, flush=True)
    return INTERRUPTED


def run(items: Sequence[T], make: Make[T, R], workers: int, stop: Stop) -> Iterator[tuple[int, R | Failure]]:
    """(index, result) of each item as it comes; fewer if `stop` was asked for. `workers` 0: in this process, without its protection.

    Raises `UserError` if a worker did.
    """
    if not items:
        return iter(())
    return _here(items, make, stop) if workers == 0 else _elsewhere(items, make, workers, stop)


def _here(items: Sequence[T], make: Make[T, R], stop: Stop) -> Iterator[tuple[int, R | Failure]]:
    with make(0) as do:
        for index, item in enumerate(items):
            if stop.asked:
                return
            yield index, told(twice(do, item))


def _elsewhere(items: Sequence[T], make: Make[T, R], workers: int, stop: Stop) -> Iterator[tuple[int, R | Failure]]:
    waiting = deque(range(len(items)))
    suspects: list[int] = []
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(_Worker(make, number)) for number in range(min(workers, len(items)))]
        busy: list[_Worker] = []
        while busy or (waiting and not stop.asked):
            while free and waiting and not stop.asked:
                index = waiting.popleft()
                busy.append(free.pop(0).begin(index, items[index]))
            for worker in _ready(busy):
                busy.remove(worker)
                result = worker.end()
                if result.failure:
                    suspects.append(worker.index)
                    worker.restart()
                else:
                    yield worker.index, told(result)
                free.append(worker)
    for index in suspects:  # nobody else takes memory now
        if not stop.asked:
            with _Worker(make, 0) as worker:
                yield index, told(worker.begin(index, items[index]).end())


def _ready(busy: list[_Worker]) -> list[_Worker]:
    """Those that have an answer, or died; waits for the first."""
    ready = connection.wait([worker.line for worker in busy])
    return [worker for worker in busy if worker.line in ready]


def told(result: Result[Any]) -> Any:
    """What came back, or a `Failure`. Raises `UserError` if the work did."""
    if result.wrong_request:
        raise UserError(result.wrong_request)
    return Failure(result.failure) if result.failure else result.value


class _Worker:
    """Owns one process and the line to it."""

    def __init__(self, make: Make[Any, Any], number: int) -> None:
        self.index = -1
        """Of the item in hand."""
        self._make, self._number = make, number
        self.restart()

    def restart(self) -> None:
        """In place of one that failed: what it holds may be damaged."""
        if self.index >= 0:
            self._end_process()
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of torch in any state
        self.line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._make, self._number))
        resource_tracker.ensure_running()  # its start would let the signals through again
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # inherited: a terminal sends Ctrl-C to everybody
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        theirs.close()  # or its end would go unnoticed

    def begin(self, index: int, item: object) -> _Worker:
        self.index = index
        with contextlib.suppress(OSError):  # dead already: `end` says so
            self.line.send(item)
        return self

    def end(self) -> Result[Any]:
        try:
            return self.line.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode or 0
            return Result(failure=f"its process ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}")

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_process()

    def _end_process(self) -> None:
        self._process.kill()  # idle, or not wanted any more; its files appear by renames
        self._process.join()
        self.line.close()


def _serve(line: connection.Connection, make: Make[Any, Any], number: int) -> None:
    """The worker: one item after the other until the parent closes the line."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    with make(number) as do:
        while True:
            try:
                item = line.recv()
            except EOFError:
                return
            line.send(_attempt(do, item))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)  # the main thread may be inside a model for minutes


def twice(do: Callable[[T], R], item: T) -> Result[R]:
    """Do it, and once more if it failed: the reason may have gone."""
    result = _attempt(do, item)
    return _attempt(do, item) if result.failure else result


def _attempt(do: Callable[[T], R], item: T) -> Result[R]:
    try:
        return Result(value=do(item))
    except UserError as error:
        return Result(wrong_request=str(error))
    except Exception as error:
        traceback.print_exc()
        return Result(failure=f"{type(error).__name__}: {error}")
