"""A run whose shards take long to write: on each rank for another number of steps, which are taken during the save."""

from __future__ import annotations

import os
import random
import threading
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from overtone.finetune import train
from overtone.finetune.checkpointing import checkpoint, rank_shards
from overtone.finetune.storage import files
from overtone.finetune.training import loop
from overtone.finetune.training.step import Training
from tests import loopback
from tests.reliability import victims

MOST_STEPS = 2
"""Steps during a write; a save that is due in the meantime would wait for it."""
PATIENCE = 3.0
"""Seconds that a write waits for steps: none come during the save after the last step."""


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
    save = SlowSave()
    slow_down(save, random.Random(rank))
    note_steps(save, witness / f"beside-{rank}")
    os._exit(train.main(argv))


class SlowSave:
    """Whether a shard is being written, and the steps that began and ended during that."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.is_writing = False
        self.steps = 0


def slow_down(save: SlowSave, chance: random.Random) -> None:
    write = rank_shards.write_shard

    def slowly(path: Path, parts: Any) -> files.Written:
        steps = chance.randint(0, MOST_STEPS)
        with save.changed:
            save.is_writing, save.steps = True, 0
            save.changed.wait_for(lambda: save.steps >= steps, PATIENCE)
        try:
            return write(path, parts)
        finally:
            save.is_writing = False

    checkpoint.rank_shards.write_shard = slowly


def note_steps(save: SlowSave, path: Path) -> None:
    """A step counts if the write that was in progress when it began still was when it had ended."""
    step = loop.train_step

    def noted(training: Training, turns: list[Any], number: int, *rest: Any) -> dict[str, float]:
        before = save.is_writing
        numbers = step(training, turns, number, *rest)
        if before and save.is_writing:
            with path.open("a") as file:
                file.write(f"{number}\n")
            with save.changed:
                save.steps += 1
                save.changed.notify_all()
        return numbers

    loop.train_step = noted
