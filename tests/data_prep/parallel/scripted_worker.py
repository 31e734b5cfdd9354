"""A worker that does what each item says. It imports little, since every worker process imports it again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from overtone.data_prep.parallel import process_pool
from overtone.finetune.errors import UserError


@contextlib.contextmanager
def make(number: int) -> Iterator[Callable[[str], tuple[str, int]]]:
    """The function returns its item with the number of items that this worker completed before."""
    completed = 0

    def process(item: str) -> tuple[str, int]:
        nonlocal completed
        _act(*item.partition(" ")[::2])
        completed += 1
        return item, completed - 1

    yield process


def _act(action: str, value: str) -> None:
    if action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "exit":
        os._exit(3)
    if action == "raise":
        raise ValueError(value)
    if action == "refuse":
        raise UserError(value)
    if action == "die-once" and not Path(value).exists():
        Path(value).touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    if action == "interrupted":  # Ctrl-C reaches every process of the group
        os.kill(os.getpid(), signal.SIGINT)
    if action == "progress":
        for step in value.split():
            process_pool.send_progress(step)
    if action in ("read", "write"):  # a pipe opens at both ends at once
        Path(value).open(action[0]).close()
    if action == "hang":
        Path(value).write_text(str(os.getpid()))
        time.sleep(600)


@contextlib.contextmanager
def make_refusing(_: int) -> Iterator[Callable[[str], str]]:
    """A worker that cannot start, as without the package of its model."""
    raise UserError("the package 'snac' is missing; install the snac extra")
    yield str
