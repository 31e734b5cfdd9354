"""Rows are measured in several processes, where a file is large enough to repay their start.

A process gets the recipe by its folder and the recipe's processor once, then a block of whole lines at a time, and gives back what
`rows.scan` makes of it. Results are taken in the order of the blocks, so index and cache are the same bytes as from one process. The
processes come from a fork server: a fork of this one would copy the locks of torch's threads in any state.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.recipe import load_recipe
from finetune.rows import Block, Measure, ScanAll, Scanned, scan

WORTH_BYTES = 2**23
"""Of the data file, for each process: seconds of tokenizing, against the seconds in which a process imports torch."""
MOST = 32
"""Processes: one that puts the results together keeps no more of them busy."""


@dataclass(frozen=True)
class Workers:
    """What processes need that measure the rows of a file."""

    path: Path
    recipe: Path
    """Folder."""
    processor: Any
    measure: Callable[..., Any]
    """(recipe, processor, row) → what it measures; has to be importable."""

    def when_worth_it(self) -> ScanAll | None:
        """What measures in processes. None where this process does better alone: a small file, one core, no right to start processes."""
        if multiprocessing.current_process().daemon or not self.path.is_file():
            return None
        count = min(len(os.sched_getaffinity(0)), MOST, self.path.stat().st_size // WORTH_BYTES)
        return partial(self.scan_all, count) if count > 1 else None

    def scan_all(self, count: int, blocks: Iterable[Block]) -> Iterator[Scanned]:
        """What `rows.scan` makes of the blocks, in order. Raises `UserError` for a row that ends its process, and what a recipe raises
        besides `UserError` as a `RuntimeError` with the place of the row."""
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(_Worker(self)) for _ in range(count)]
            if problem := next(filter(None, [worker.problem() for worker in idle]), None):
                print(f"indexing {self.path} in one process, since no other can do it: {problem}", file=sys.stderr, flush=True)
                yield from map(partial(scan, self._measure_here(), self.path), blocks)
                return
            print(f"indexing {self.path} in {count} processes", file=sys.stderr, flush=True)
            busy: deque[tuple[_Worker, Block]] = deque()
            for block in blocks:
                if not idle:
                    worker, given = busy.popleft()
                    yield from worker.results(given)
                    idle.append(worker)
                busy.append((idle.pop().begin(block), block))
            for worker, given in busy:
                yield from worker.results(given)

    def _measure_here(self) -> Measure:
        return partial(self.measure, load_recipe(self.recipe), self.processor)


class _Worker:
    """Owns one process and the line to it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def __enter__(self) -> _Worker:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def problem(self) -> str | None:
        """Send what the process needs. Why it cannot measure rows, such as a processor that cannot be sent; None once it is ready to."""
        try:
            self._line.send((str(self._workers.path), str(self._workers.recipe), self._workers.measure))
            self._line.send(self._workers.processor)
            answer: str | None = self._line.recv()
        except (EOFError, OSError):
            return f"it ended while it started ({self._how_it_ended()})"
        except Exception as error:  # an object says in its own way that it cannot be copied to another process
            return f"{type(error).__name__}: {error}"
        return answer

    def begin(self, block: Block) -> _Worker:
        with contextlib.suppress(OSError):  # dead already: `results` says so
            self._line.send(block)
        return self

    def results(self, block: Block) -> Iterator[Scanned]:
        """Of the block that was begun. One that ends its process is measured again row by row, which finds the row, or finds that the
        reason has gone."""
        found = self._answer(block)
        if found is not None:
            yield found
            return
        if problem := self._restart():
            raise UserError(f"{self._workers.path}: a process that reads its rows has ended, and cannot be started again: {problem}")
        for row in _rows_of(block):
            alone = self.begin(row)._answer(row)
            if alone is None:
                raise UserError(
                    f"{self._workers.path}:{row.line}: reading this row ended its process, twice ({self._how_it_ended()}); take the row "
                    "out, or give the machine more memory"
                )
            yield alone

    def _answer(self, block: Block) -> Scanned | None:
        """None if the process has ended. Raises `RuntimeError` with what a recipe raised there."""
        try:
            answer = self._line.recv()
        except (EOFError, OSError):  # OSError: killed while it sent its answer
            return None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return Scanned(*answer)._replace(raw=block.raw)

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # or its end would go unnoticed

    def _restart(self) -> str | None:
        """Another process in place of the one that ended; returns why it cannot work, as `problem` does."""
        self._end()
        self._start()
        return self.problem()

    def _end(self) -> None:
        self._line.close()
        self._process.kill()  # idle, or not wanted any more: it writes nothing
        self._process.join()

    def _how_it_ended(self) -> str:
        self._process.join()
        code = self._process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _rows_of(block: Block) -> Iterator[Block]:
    """Each line of a block by itself."""
    offset = block.offset
    for line, raw in enumerate(io.BytesIO(block.raw), start=block.line):
        yield Block(raw, offset, line)
        offset += len(raw)


def _serve(line: Connection) -> None:
    """The process: one block after the other until the parent closes the line, or ends."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to everybody; the parent's end closes the line
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            path, folder, measure = line.recv()
            recipe = load_recipe(Path(folder))  # before the processor, whose class may be the recipe's own
            processor = line.recv()
        except Exception as error:
            line.send(f"{type(error).__name__}: {error}")
            return
        line.send(None)
        while True:
            line.send(_attempt(partial(measure, recipe, processor), Path(path), line.recv()))


def _attempt(measure: Measure, path: Path, block: Block) -> tuple[Any, ...] | str:
    """What `rows.scan` found, without the block itself, or the traceback of what it raised."""
    try:
        return tuple(scan(measure, path, block)._replace(raw=b""))
    except Exception:
        return traceback.format_exc()
