"""A run whose shards take long to write, on each rank for another time, so that training goes on beside every save."""

from __future__ import annotations

import os
import random
import threading
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from finetune import train
from finetune.checkpointing import checkpoint, safetensors_shards
from finetune.storage import files
from finetune.training import loop
from finetune.training.step import Training
from tests import loopback
from tests.reliability import victims

LONGEST_SECONDS = 0.2


def begin(witness: Path, size: int, argv: list[str]) -> list[ForkServerProcess]:
    """The ranks of a run that leaves `beside-RANK`: a line for each step during which this rank was writing a shard."""
    witness.mkdir(parents=True, exist_ok=True)
    port = loopback.free_port()
    return [victims.begin(train_rank, rank, size, port, witness, argv) for rank in range(size)]


def steps_beside(witness: Path, rank: int) -> int:
    path = witness / f"beside-{rank}"
    return len(path.read_text().splitlines()) if path.exists() else 0


# --- inside the run


def train_rank(rank: int, size: int, port: int, witness: Path, argv: list[str]) -> None:
    victims.become(rank, size, port, witness)
    victims.draw_no_curve()
    writing = threading.Event()
    slow_down(writing, random.Random(rank))
    note_steps(writing, witness / f"beside-{rank}")
    os._exit(train.main(argv))


def slow_down(writing: threading.Event, chance: random.Random) -> None:
    write = safetensors_shards.write_shard

    def slowly(path: Path, parts: Any) -> files.Written:
        writing.set()
        time.sleep(chance.uniform(0, LONGEST_SECONDS))
        try:
            return write(path, parts)
        finally:
            writing.clear()

    checkpoint.safetensors_shards.write_shard = slowly


def note_steps(writing: threading.Event, path: Path) -> None:
    """A step counts if the write that was going on when it began still was when it had ended."""
    step = loop.train_step

    def noted(training: Training, turns: list[Any], number: int, *rest: Any) -> dict[str, float]:
        before = writing.is_set()
        numbers = step(training, turns, number, *rest)
        if before and writing.is_set():
            with path.open("a") as file:
                file.write(f"{number}\n")
        return numbers

    loop.train_step = noted
