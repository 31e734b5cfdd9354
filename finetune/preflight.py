"""Whether a run's checkpoints will find room, and be seen by all ranks: asked before a weight is read and not after hours of training."""

from __future__ import annotations

import platform
import secrets
from pathlib import Path

from torch import nn

from finetune import checkpoint, files
from finetune.errors import UserError
from finetune.world import World, once, together

KEPT = 12
"""Bytes of a checkpoint for each trained parameter: an fp32 master and AdamW's two moments."""
AT_ONCE = 2
"""Checkpoints that lie there together at least: one is only removed once the next is whole."""


def checkpoint_bytes(trained: int) -> int:
    """On disk, of a checkpoint with so many trained parameters."""
    return KEPT * trained


def check_room(run_dir: Path, trained: int) -> None:
    """Raises `UserError` if the disk has no room for two checkpoints; those that a run being continued has already made are there."""
    missing = max(1, AT_ONCE - len(checkpoint.steps_in(checkpoint.folder_of(run_dir))))
    files.require_space(run_dir, missing * checkpoint_bytes(trained), f"room for {missing} more of this run's checkpoints")


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


def trained_in(model: nn.Module) -> int:
    """Parameters that are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
