"""A part of gpu.py for tests, in whose place it is measured: figures that hang, die, fail, and one that does none of it."""

from __future__ import annotations

import os
import signal

from workshop.benchmarks._gpu import Bench
from workshop.benchmarks._gpu_figures import Cells, Figure, Part, Table


def hang(_: Bench) -> list[Cells]:
    while True:
        signal.pause()


def die(_: Bench) -> list[Cells]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def fail(_: Bench) -> list[Cells]:
    raise ValueError("not\nhere")


def answer(bench: Bench) -> list[Cells]:
    """Return a table, and leave a letter in the folder for each call, which shows if there is a second one."""
    with (bench.folder / "answers").open("a") as file:
        file.write("x")
    return [["answers", 42]]


def prepare(bench: Bench) -> None:
    bench.folder.mkdir(parents=True, exist_ok=True)


FIGURES = (Figure("hangs", 0.05, hang), Figure("dies", 9.0, die), Figure("fails", 9.0, fail), Figure("answers", 9.0, answer))
PART = Part((Table(("what", "figure"), FIGURES, "A note."),), prepare, preparing=9.0)
