"""Disk-space check: room for a run's checkpoints, before any weights are read."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.modeling import optimizers
from overtone.finetune.storage import files

MASTER = 4
"""Bytes of a checkpoint per trained parameter, without the optimizer state."""
AT_ONCE = 2
"""Checkpoints that exist at the same time: one is removed only after the next is complete."""


def checkpoint_bytes(trained: int, state: int) -> int:
    """Return the size on disk of a checkpoint with `trained` parameters and `state` bytes of optimizer state."""
    return MASTER * trained + state


def check_room(run_dir: Path, size: int) -> None:
    """Raises `UserError` if the disk has no room for two checkpoints of `size` bytes, including those that the run already has."""
    missing = max(1, AT_ONCE - len(checkpoint.list_checkpoints(checkpoint.folder_of(run_dir))))
    files.require_space(run_dir, missing * size, f"room for {missing} more of this run's checkpoints")


def checkpoint_bytes_of(model: nn.Module, optimizer: optimizers.Rule, blocks: tuple[type[nn.Module], ...]) -> int:
    """Return `checkpoint_bytes` of a model on the meta device."""
    rules = optimizers.assign_rules(model, optimizer, blocks)
    state = sum(parameter.numel() * optimizers.state_bytes(parameter, rule) for parameter, rule in rules.items())
    return checkpoint_bytes(sum(parameter.numel() for parameter in rules), round(state))
