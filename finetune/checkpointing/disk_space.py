"""Disk-space check: room for a run's checkpoints, and a run folder shared by all machines, verified before any weights are read."""

from __future__ import annotations

import platform
import secrets
from pathlib import Path

from torch import nn

from finetune.checkpointing import checkpoint
from finetune.distributed.process_group import World, run_on_all, run_on_main
from finetune.errors import UserError
from finetune.modeling import optimizers
from finetune.storage import files

MASTER = 4
"""Bytes of a checkpoint per trained parameter, without the optimizer state."""
AT_ONCE = 2
"""Checkpoints that exist at the same time: one is removed only after the next is complete."""


def checkpoint_bytes(trained: int, state: int) -> int:
    """Size on disk of a checkpoint with `trained` parameters and `state` bytes of optimizer state."""
    return MASTER * trained + state


def check_room(run_dir: Path, size: int) -> None:
    """Raises `UserError` if the disk has no room for two checkpoints of `size` bytes, including those that the run already has."""
    missing = max(1, AT_ONCE - len(checkpoint.list_checkpoints(checkpoint.folder_of(run_dir))))
    files.require_space(run_dir, missing * size, f"room for {missing} more of this run's checkpoints")


def check_shared(run_dir: Path, world: World) -> None:
    """Raises `UserError` if the machines do not share the run's folder: its checkpoints would be incomplete. Collective: call on every
    rank."""
    name = run_on_main(world, lambda: write_marker(run_dir))
    try:
        run_on_all(world, lambda: check_marker(run_dir / name, world.rank))
    finally:
        if world.is_main:
            files.discard(run_dir / name)


def write_marker(run_dir: Path) -> str:
    """Write a marker file with the name of this machine to the run's folder; returns its name."""
    mark = run_dir / f".seen-{secrets.token_hex(8)}"
    with files.explain_write_errors(run_dir):
        files.write_text(mark, platform.node())
    return mark.name


def check_marker(mark: Path, rank: int) -> None:
    if not mark.exists():
        raise UserError(
            f"run.dir: {platform.node()} (rank {rank}) does not see the files that rank 0 writes to {mark.parent}; "
            "choose a --run.dir on a file system that all machines share"
        )


def checkpoint_bytes_of(model: nn.Module, optimizer: optimizers.Rule, blocks: tuple[type[nn.Module], ...]) -> int:
    """As `checkpoint_bytes`, for a model on the meta device."""
    rules = optimizers.assign_rules(model, optimizer, blocks)
    state = sum(parameter.numel() * optimizers.state_bytes(parameter, rule) for parameter, rule in rules.items())
    return checkpoint_bytes(sum(parameter.numel() for parameter in rules), round(state))
