"""Command-line values that the verbs of a Ray cluster share, and the paths that every machine needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from overtone.finetune.addresses import is_url
from overtone.finetune.config import Data
from overtone.finetune.config_sources import Arguments
from overtone.finetune.errors import UserError

CLUSTER_FLAGS = ("storage", "use-gpu", "ray-address", "max-failures")
USE_GPU: dict[str, bool | None] = {"auto": None, "true": True, "false": False}


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster and the resources to use, from the command line."""

    storage: Path
    """The folder that all machines share."""
    gpu: bool | None
    """True if workers take a GPU; None: they take one if the cluster has any."""
    address: str | None
    failures: int

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ClusterOptions:
        """Parse the values of `CLUSTER_FLAGS`. Raises `UserError`."""
        return cls(
            parse_storage(given.get("storage", ".")),
            parse_choice("use-gpu", given.get("use-gpu", "auto"), USE_GPU),
            given.get("ray-address"),
            parse_count("max-failures", given.get("max-failures", "3")),
        )


def parse_choice(flag: str, value: str, meanings: dict[str, bool | None]) -> bool | None:
    """Return the meaning of a flag's value. Raises `UserError` for another value."""
    if value not in meanings:
        raise UserError(f"--{flag} {value}: expected {', '.join(meanings)}")
    return meanings[value]


def parse_count(flag: str, value: str, least: int = 0) -> int:
    """Return a whole number of at least `least`. Raises `UserError`."""
    if not value.isdecimal() or int(value) < least:
        raise UserError(f"--{flag} {value}: expected a number from {least}")
    return int(value)


def parse_storage(value: str) -> Path:
    """Return the folder that all machines share. Raises `UserError` for object storage."""
    if is_url(value):
        raise UserError(
            f"--storage {value}: the run's folder must be one that all machines mount, since its commits are renames; "
            f"--checkpoint.copy_to {value} keeps copies of its checkpoints there"
        )
    return Path(value)


def format_arguments(arguments: Arguments) -> list[str]:
    """Return the arguments as a command line, without run.dir, which the driver resolves for all workers."""
    assert arguments.recipe is not None
    named = [("recipe", arguments.recipe), *(("config", str(path)) for path in arguments.files)]
    return [f"--{key}={value}" for key, value in (*named, *arguments.overrides) if key != "run.dir"]


def list_local_files(source: str | None, data: Data) -> list[Path]:
    """Return the paths of the base's `source` and the data, which each machine must have, besides the package, in the same place as this
    one."""
    local = [Path(source)] if source and Path(source).exists() else []
    named = (*data.training_files(), *data.validation_files())
    return [Path.cwd(), *(path.absolute() for path in (*local, *named) if isinstance(path, Path))]
