"""torch.compile of a model's blocks: whether a run repays it, and one graph for all blocks of a kind.

Code between blocks is not compiled: there, sharding gathers and reduces, and the loss cuts its chunks.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from finetune import recompute
from finetune.config import Config
from finetune.errors import UserError
from finetune.gpus import EFFICIENCY, GPUS
from finetune.recipe import Loaded, Recipe
from finetune.world import World

SECONDS = 60.0
"""What compiling one kind of block takes, forward and backward, without a cache: assumed, on the long side, until a GPU is measured."""
SAVED = 0.2
"""Share of a step that compiled blocks save. By arithmetic, of a 1.7 B model on an H100 27 %: elementwise operations are fused, and the
host has fewer kernels to start."""
SPEED = GPUS["h100-80gb"].speed * EFFICIENCY * 1e12
"""Operations a second that a rank computes at most. On a slower GPU a run takes longer, and saves more."""


@dataclass(frozen=True)
class Compilation:
    """A decision."""

    on: bool
    remark: str = ""
    """One line for the log; empty where there is nothing to say."""


def decide(config: Config, loaded: Loaded, world: World, steps: int) -> Compilation:
    """What `train.compile` means for a run of so many steps on this machine. `loaded` says which parameters train, and is not sharded."""
    wanted = config.train.compile
    if wanted is not True and (wanted is False or world.device.type != "cuda"):
        return Compilation(False)
    taken = f"the first step takes about {SECONDS * kinds(loaded):.0f} seconds longer"
    if wanted is True:
        return Compilation(True, f"train.compile: true; {taken}")
    if reason := obstacle(config, loaded):
        return Compilation(False, f"train.compile: auto, and blocks are not compiled: {reason}")
    positions = steps * config.train.global_batch_tokens
    saved = SAVED * seconds(loaded, positions) / world.data_size
    if saved < SECONDS * kinds(loaded):
        return Compilation(False, f"train.compile: auto, and blocks are not compiled: {positions:,} positions are too few to repay it")
    return Compilation(True, f"train.compile: auto, and blocks are compiled, which saves {saved / 60:.0f} minutes or more; {taken}")


def obstacle(config: Config, loaded: Loaded) -> str | None:
    """Why `auto` leaves blocks as they are, however long the run."""
    if config.parallel.tensor > 1:
        return "torch's compiler fails on shared matrices (parallel.tensor)"
    if config.model.quantization:
        return "weights in 4 bits (model.quantization) are not tried with it"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang")))):
        return "no C compiler (gcc or clang) is installed, which triton needs"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "the headers of Python (python3-dev) are not installed, which triton needs"
    return loaded.varies


def kinds(loaded: Loaded) -> int:
    """Classes of blocks, each with a graph of its own."""
    return len({type(module) for module in loaded.model.modules() if isinstance(module, loaded.blocks)})


def seconds(loaded: Loaded, positions: int) -> float:
    """That one rank computes in blocks at least: 6 operations a parameter and position, 4 if it is frozen (Kaplan et al. 2020,
    arXiv:2001.08361, without the gradient of the weight)."""
    blocks = [module for module in loaded.model.modules() if isinstance(module, loaded.blocks)]
    operations = sum(parameter.numel() * (6 if parameter.requires_grad else 4) for block in blocks for parameter in block.parameters())
    return operations * positions / SPEED


def fixed_positions(config: Config, recipe: Recipe) -> int | None:
    """Positions of every micro-batch while blocks are compiled; None where sizes vary, and blocks are compiled for any."""
    return config.train.micro_tokens if config.data.packing and recipe.pad is not None else None


def compile_blocks(
    model: nn.Module, blocks: tuple[type[nn.Module], ...], fixed: bool, backend: str | Callable[..., Any] = "inductor"
) -> None:
    """Compile each block in place, which keeps all names. Equal blocks share one graph, and a block of `fixed` sizes has but one.

    It is the forward that is compiled, and not the call: hooks of sharding stay outside of the graph, which they would break.
    """
    for module in recompute.outermost(model, blocks):
        module.forward = in_training(module.forward, torch.compile(module.forward, dynamic=not fixed, backend=backend))


@contextmanager
def explained() -> Iterator[None]:
    """Turn the compiler's errors, which come at the first step, into a `UserError`."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo.", "torch._inductor.")):
            raise
        problem = " ".join(list(filter(None, map(str.strip, str(error).splitlines())))[:2])  # who failed, and how
        raise UserError(f"train.compile: torch could not compile the model's blocks ({problem}); set train.compile: false") from error


def in_training(plain: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled forward where there will be a backward pass: evaluation has other sizes, each of which would be compiled for one use."""

    def forward(*given: Any, **named: Any) -> Any:
        return (compiled if torch.is_grad_enabled() else plain)(*given, **named)

    return forward
