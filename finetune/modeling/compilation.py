"""torch.compile of a model's blocks: the decision whether a run is long enough for it, and one graph for all equal blocks.

Code between blocks is not compiled, since sharding runs its collectives there, and the loss is computed in chunks.
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
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from overtone.finetune.config import Model
from overtone.finetune.distributed import activation_checkpointing
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.hardware.gpu_specs import EFFICIENCY, GPUS
from overtone.finetune.recipe import Loaded, Recipe
from overtone.finetune.storage.text_lines import split_lines

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

SECONDS = 30.0
"""Compile time of one kind of block, forward and backward, without a cache. Measured beside an H100 with 16 processor cores: 12 s
(workshop/benchmarks/gpu.py, part voice); slower processors take longer."""
SAVED = 0.25
"""Fraction of a step that compiled blocks save, since elementwise operations are fused and the host launches fewer kernels. Measured on an
H100: 26 % with a 1.7B chat model, 46 % with a 0.6B voice (workshop/benchmarks/gpu.py, parts chat and voice)."""
SPEED = GPUS["h100-80gb"].speed * EFFICIENCY * 1e12
"""Maximum operations per second of a rank. On a slower GPU a run takes longer, and compilation saves more."""


@dataclass(frozen=True)
class Compilation:
    """Decision whether blocks are compiled."""

    on: bool
    remark: str = ""
    """One line for the log; may be empty."""


def decide_compilation(wanted: bool | str, model: Model, loaded: Loaded, world: World, positions: int) -> Compilation:
    """Decide whether to compile blocks in a run with that number of positions on this machine. `wanted`: `train.compile`. `loaded`: the
    model before sharding, with frozen parameters marked."""
    if wanted is not True and (wanted is False or world.device.type != "cuda"):
        return Compilation(False)
    taken = f"the first step takes about {SECONDS * count_kinds(loaded):.0f} seconds longer"
    if wanted is True:
        return Compilation(True, f"train.compile: true; {taken}")
    if reason := find_obstacle(model, world.tensor, loaded):
        return Compilation(False, f"train.compile: auto, and blocks are not compiled: {reason}")
    saved = SAVED * estimate_seconds(loaded, positions) / world.data_size
    if saved < SECONDS * count_kinds(loaded):
        return Compilation(False, f"train.compile: auto, and blocks are not compiled: {positions:,} positions are too few to repay it")
    return Compilation(True, f"train.compile: auto, and blocks are compiled, which saves {saved / 60:.0f} minutes or more; {taken}")


def find_obstacle(model: Model, tensor: int, loaded: Loaded) -> str | None:
    """Return why `auto` does not compile blocks, however long the run is; None if it may. `tensor`: number of tensor-parallel ranks."""
    if tensor > 1:
        return "torch.compile fails with tensor parallelism (parallel.tensor)"
    if model.quantization:
        return "it is not tested with 4-bit weights (model.quantization)"
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang")))):
        return "no C compiler (gcc or clang) is installed, which triton needs"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "the headers of Python (python3-dev) are not installed, which triton needs"
    return loaded.varies


def count_kinds(loaded: Loaded) -> int:
    """Return the number of classes of blocks, each of which gets its own graph."""
    return len({type(module) for module in loaded.model.modules() if isinstance(module, loaded.blocks)})


def estimate_seconds(loaded: Loaded, positions: int) -> float:
    """Minimum compute time of the blocks on one rank: 6 operations per parameter and position, 4 for a frozen parameter (Kaplan et al.
    2020, arXiv:2001.08361, without the weight gradient)."""
    blocks = [module for module in loaded.model.modules() if isinstance(module, loaded.blocks)]
    operations = sum(parameter.numel() * (6 if parameter.requires_grad else 4) for block in blocks for parameter in block.parameters())
    return operations * positions / SPEED


def fixed_positions(packing: bool, recipe: Recipe, largest: int) -> int | None:
    """Return the length to which micro-batches of up to `largest` positions are padded when blocks are compiled; None if sizes vary, and
    blocks are compiled with dynamic shapes."""
    return largest if packing and recipe.pad is not None else None


def compile_blocks(
    model: nn.Module, blocks: tuple[type[nn.Module], ...], fixed: bool, backend: str | Callable[..., object] = "inductor"
) -> None:
    """Compile each block in place; parameter names do not change. Equal blocks share one graph. `fixed`: static shapes.

    It compiles `forward`, not `__call__`, so that the hooks of sharding stay outside of the graph, which they would break.
    """
    import torch._dynamo  # takes a second, and most runs do not compile

    # A block may record values, such as sums over a router's probabilities. Without this, a block that does so and is recomputed in the
    # backward pass would not be compiled. Recording again there has no use.
    torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
    for module in activation_checkpointing.find_outermost_blocks(model, blocks):
        module.forward = compile_training_forward(module.forward, torch.compile(module.forward, dynamic=not fixed, backend=backend))


@contextmanager
def explain_compiler_errors() -> Iterator[None]:
    """Convert errors of the compiler, which are raised in the first step, to a `UserError`."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo.", "torch._inductor.")):
            raise
        problem = " ".join(list(filter(None, map(str.strip, split_lines(str(error)))))[:2])  # the component that failed, and its error
        raise UserError(f"train.compile: torch could not compile the model's blocks ({problem}); set train.compile: false") from error


def compile_training_forward(plain: Callable[P, ResultT], compiled: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Use the compiled forward only with gradients: evaluation has other shapes, each of which would be compiled for a single use."""

    def forward(*given: P.args, **named: P.kwargs) -> ResultT:
        return (compiled if torch.is_grad_enabled() else plain)(*given, **named)

    return forward
