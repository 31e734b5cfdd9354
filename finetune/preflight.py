"""Whether a run's checkpoints will find room, asked before a weight is read and not after hours of training."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from finetune import checkpoint, files

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


def trained_in(model: nn.Module) -> int:
    """Parameters that are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
