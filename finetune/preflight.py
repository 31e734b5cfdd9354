"""Whether a run's checkpoints will find room, and be seen by all ranks: asked before a weight is read and not after hours of training."""

from __future__ import annotations

import platform
import secrets
from pathlib import Path

from torch import nn

from finetune import checkpoint, files, optim
from finetune.errors import UserError
from finetune.world import World, once, together

MASTER = 4
"""Bytes of a checkpoint for each trained parameter, besides the optimizer's state."""
AT_ONCE = 2
"""Checkpoints that lie there together at least: one is only removed once the next is whole."""


def checkpoint_bytes(trained: int, state: int) -> int:
    """On disk, of a checkpoint with so many trained parameters and so many bytes of optimizer state."""
    return MASTER * trained + state


def check_room(run_dir: Path, size: int) -> None:
    """Raises `UserError` if the disk has no room for two checkpoints of this size; those that a run being continued has made are there."""
    missing = max(1, AT_ONCE - len(checkpoint.steps_in(checkpoint.folder_of(run_dir))))
    files.require_space(run_dir, missing * size, f"room for {missing} more of this run's checkpoints")


def check_shared(run_dir: Path, world: World) -> None:
    """Refuse a run's folder that is another one on another machine: no checkpoint in it would be whole. Collective: call on every rank."""
    name = once(world, lambda: leave_mark(run_dir))
    try:
        together(world, lambda: see_mark(run_dir / name, world.rank))
    finally:
        if world.is_main:
            files.discard(run_dir / name)


def leave_mark(run_dir: Path) -> str:
    """Name of a file in the run's folder that says which machine wrote it."""
    mark = run_dir / f".seen-{secrets.token_hex(8)}"
    with files.no_writing_explained(run_dir):
        files.write_text(mark, platform.node())
    return mark.name


def see_mark(mark: Path, rank: int) -> None:
    if not mark.exists():
        raise UserError(
            f"run.dir: {platform.node()} (rank {rank}) does not see what rank 0 writes to {mark.parent}; "
            "give a --run.dir on a file system that all machines share"
        )


def checkpoint_bytes_of(model: nn.Module, optimizer: optim.Rule, blocks: tuple[type[nn.Module], ...]) -> int:
    """As `checkpoint_bytes`, of a model on meta."""
    rules = optim.rules_of(model, optimizer, blocks)
    state = sum(parameter.numel() * optim.state_bytes(parameter, rule) for parameter, rule in rules.items())
    return checkpoint_bytes(sum(parameter.numel() for parameter in rules), round(state))
