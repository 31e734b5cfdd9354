"""Checks that all machines see the run's folder, before any weights are read."""

from __future__ import annotations

import platform
import secrets
from pathlib import Path

from overtone.finetune.distributed.process_group import World, run_on_all, run_on_main
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files


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
