"""Worker processes that tokenize and index the rows of a large data file in parallel.

A process receives the recipe (by its folder) and its processor once, then one block of lines at a time, and returns the result of
`scan_block` in finetune/data/index_building.py. Results are collected in the order of the blocks, so index and cache have the same bytes as
with one process. The processes come from a fork server: a fork of this process would copy locks of torch's threads in an arbitrary state.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from overtone.finetune.data.index_building import Block, Measure, ScanAll, Scanned, scan_block
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import load_recipe
from overtone.finetune.terminal import print_diagnostic, protect_terminal
from overtone.finetune.worker_start import start_worker

WORTH_BYTES = 2**23
"""Minimum size of the data file per process: tokenizing it takes seconds, as does importing torch in a new process."""
SECONDS_TO_END = 1.0
"""Seconds that a process may take to end after its pipe broke; one that is still running then is not at fault."""
MOST = 32
"""Maximum number of processes; the one that collects the results cannot keep more of them busy."""


@dataclass(frozen=True)
class IndexWorkers:
    """Configuration of the processes that index a file."""

    path: Path
    recipe: Path
    """Folder."""
    processor: Any
    measure: Callable[..., Any]
    """(recipe, processor, row) → measurement; can be pickled."""

    def choose_scan(self) -> ScanAll | None:
        """Return a function that scans in several processes; None if a single process is better: a small file, one core, or inside a
        daemon."""
        if multiprocessing.current_process().daemon or not self.path.is_file():
            return None
        count = min(len(os.sched_getaffinity(0)), MOST, self.path.stat().st_size // WORTH_BYTES)
        return partial(self.scan_all, count) if count > 1 else None

    def scan_all(self, count: int, blocks: Iterable[Block]) -> Iterator[Scanned]:
        """Yield the results of `scan_block` in finetune/data/index_building.py for the blocks, in order. Raises `UserError` for a row that
        kills its process, and `RuntimeError` with the place of the row for any other exception of a recipe."""
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(_Worker(self)) for _ in range(count)]
            if problem := next(filter(None, [worker.problem() for worker in idle]), None):
                print_diagnostic(f"indexing {self.path} in one process, since worker processes failed: {problem}")
                measure = partial(self.measure, load_recipe(self.recipe), self.processor)
                yield from map(partial(scan_block, measure, self.path), blocks)
                return
            print_diagnostic(f"indexing {self.path} in {count} processes")
            busy: deque[tuple[_Worker, Block]] = deque()
            for block in blocks:
                if not idle:
                    worker, given = busy.popleft()
                    yield from worker.results(given)
                    idle.append(worker)
                busy.append((idle.pop().begin(block), block))
            for worker, given in busy:
                yield from worker.results(given)


class _Worker:
    """One process, and the connection to it."""

    def __init__(self, workers: IndexWorkers) -> None:
        self._workers = workers

    def __enter__(self) -> _Worker:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def problem(self) -> str | None:
        """Send the configuration to the process. Returns why it cannot work, such as a processor that cannot be pickled; None if it is
        ready."""
        try:
            self._line.send((str(self._workers.path), str(self._workers.recipe), self._workers.measure))
            self._line.send(self._workers.processor)
            answer: str | None = self._line.recv()
        except Exception as error:  # objects that cannot be pickled raise various types
            self._process.join(SECONDS_TO_END if isinstance(error, EOFError | OSError) else 0)
            if self._process.exitcode is None:  # the process is fine, so what could not be sent is at fault
                return f"{type(error).__name__}: {error}"
            return f"it ended during startup ({self._how_it_ended()})"
        return answer

    def begin(self, block: Block) -> _Worker:
        with contextlib.suppress(OSError):  # the process is dead; `results` reports it
            self._line.send(block)
        return self

    def results(self, block: Block) -> Iterator[Scanned]:
        """Yield the results of the block that was begun. If the process died, the block is repeated row by row, which finds the row that
        caused it, or succeeds if the cause was temporary."""
        found = self._answer(block)
        if found is not None:
            yield found
            return
        if problem := self._restart():
            raise UserError(
                f"{self._workers.path}: a process that reads its rows has ended, and cannot be started again: {problem}; "
                "run the same command again, or give the machine more memory"
            )
        for row in _rows_of(block):
            alone = self.begin(row)._answer(row)
            if alone is None:
                raise UserError(
                    f"{self._workers.path}:{row.line}: reading this row killed its process twice ({self._how_it_ended()}); remove the "
                    "row, or use a machine with more memory"
                )
            yield alone

    def _answer(self, block: Block) -> Scanned | None:
        """The result; None if the process has ended. Raises `RuntimeError` with the traceback of a recipe's exception."""
        try:
            answer = self._line.recv()
        except (EOFError, OSError):  # OSError: killed while it sent its answer
            return None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        scanned: Scanned = answer
        return scanned._replace(raw=block.raw)

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        start_worker(self._process)
        theirs.close()  # otherwise the end of the process would not be noticed

    def _restart(self) -> str | None:
        """Another process in place of the one that ended; returns why it cannot work, as `problem` does."""
        self._end()
        self._start()
        return self.problem()

    def _end(self) -> None:
        self._line.close()
        self._process.kill()  # safe: it writes no files
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
    """Main loop of the process: handles blocks until the parent closes the connection, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; this one ends when the parent does
    protect_terminal()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            path, folder, measure = line.recv()
            recipe = load_recipe(Path(folder))  # before the processor, whose class may be defined in the recipe
            processor = line.recv()
        except Exception as error:
            line.send(f"{type(error).__name__}: {error}")
            return
        line.send(None)
        while True:
            line.send(_try_scan(partial(measure, recipe, processor), Path(path), line.recv()))


def _try_scan(measure: Measure, path: Path, block: Block) -> Scanned | str:
    """The result of `scan_block`, without the block itself, or the traceback of an exception."""
    try:
        return scan_block(measure, path, block)._replace(raw=b"")
    except Exception:
        return traceback.format_exc()
