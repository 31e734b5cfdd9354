"""Out-of-memory errors, converted to a message that compares the used memory with the plan, and suggests three config keys with values."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch

from overtone.finetune.config import Config
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Recipe
from overtone.finetune.training.step import Training

UNITS = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "bytes": 1}
ON_CPU = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
"""torch's message for host memory, in a plain RuntimeError."""


class MemoryShortError(UserError):
    """A device is out of memory."""

    reason = "out of memory"
    """Value of `reason` in `exit.json`."""


@contextlib.contextmanager
def explain_out_of_memory(config: Config, recipe: Recipe, world: World, training: Training | None = None) -> Iterator[None]:
    """Convert out-of-memory errors to a `MemoryShortError`. `training`: the run, if it is built."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not ON_CPU.search(str(error)):
            raise
        from overtone.finetune.training.peak_memory_report import describe_shortage  # here, since it imports the planner

        raise MemoryShortError(describe_shortage(str(error), parse_failed_bytes(str(error)), config, recipe, world, training)) from None


def parse_failed_bytes(problem: str) -> int:
    """Return the bytes of the failed allocation, from torch's message; 0 if unknown."""
    if found := ON_CPU.search(problem):
        return int(found[1])
    found = re.search(r"Tried to allocate ([\d.]+) (GiB|MiB|KiB|bytes)", problem)
    return int(float(found[1]) * UNITS[found[2]]) if found else 0
