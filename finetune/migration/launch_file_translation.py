"""Translation of a whole file: which kind it is, a line for each key, and the launch file and config that come of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overtone.finetune.config_sources import read_config_file
from overtone.finetune.errors import UserError
from overtone.finetune.planning.launch_file_content import launch_settings
from overtone.finetune.storage import strict_json

from . import accelerate_config, deepspeed_config
from .key_rule_engine import KINDS, Given, KeyLine, Kind, apply_rules, flatten_keys

if TYPE_CHECKING:
    from pydantic import JsonValue

NAMED = "deepspeed_config.deepspeed_config_file"
"""Key of an accelerate file that names a DeepSpeed file, which then replaces the other keys of its section."""


@dataclass(frozen=True)
class TrainingSizes:
    """Sizes that a file lacks, and that convert its numbers into those of the config."""

    processes: int | None = None
    sequence_length: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Translation:
    """The outcome of a file."""

    kind: str
    """`DeepSpeed` or `accelerate`."""
    lines: tuple[KeyLine, ...]
    config: Mapping[str, Any]
    """Dotted config key → value."""
    launch: Mapping[str, Any]
    """Content of the launch file."""

    def list_lines(self, kind: Kind) -> list[KeyLine]:
        return [line for line in self.lines if line.outcome.kind == kind]

    def count(self) -> str:
        """Return how many keys had which outcome, as a phrase."""
        return ", ".join(f"{len(self.list_lines(kind))} {kind}" for kind in KINDS)


def translate_file(path: Path, training: TrainingSizes) -> Translation:
    """Translate a DeepSpeed JSON or an accelerate YAML. Raises `UserError` for a file that is neither, or that contradicts itself."""
    if path.suffix.lower() == ".json":
        return assemble("DeepSpeed", translate_deepspeed(path, read_json(path), training), 1, training.processes)
    values = read_config_file(path).values
    if "distributed_type" in values or "compute_environment" in values:
        return translate_accelerate(path, values, training)
    if "zero_optimization" in values:
        return assemble("DeepSpeed", translate_deepspeed(path, values, training), 1, training.processes)
    raise UserError(f"{path} is neither a launch file of accelerate (no distributed_type) nor a DeepSpeed config (no zero_optimization)")


def read_json(path: Path) -> dict[str, JsonValue]:
    values = strict_json.read_object(path)
    known = {key.partition(".")[0] for key in deepspeed_config.RULES}
    if not known & set(values):
        raise UserError(f"{path} has no key of a DeepSpeed config, such as zero_optimization or train_batch_size")
    return values


def translate_deepspeed(path: Path, values: Mapping[str, JsonValue], training: TrainingSizes) -> list[KeyLine]:
    given = Given(dict(flatten_keys(values)), training.processes, 1, training.sequence_length, training.steps)
    with named_in_errors(path):
        deepspeed_config.check_batch(given)
        return apply_rules(deepspeed_config.RULES, given)


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Put the file before the errors of its keys."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def translate_accelerate(path: Path, values: Mapping[str, JsonValue], training: TrainingSizes) -> Translation:
    """Return a launch file, and the DeepSpeed file that it may name, relative to the current folder or to its own."""
    flat = dict(flatten_keys(values))
    single = flat.get("distributed_type") == "NO"
    processes = 1 if single else training.processes or read_count(path, flat, "num_processes")
    machines = read_count(path, flat, "num_machines") or 1
    given = Given(flat, processes, machines, training.sequence_length, training.steps)
    named = flat.pop(NAMED, None)
    with named_in_errors(path):
        lines = apply_rules(accelerate_config.RULES, given)
    if named is not None:
        file = next((place for place in (Path(str(named)), path.parent / str(named)) if place.is_file()), None)
        if file is None:
            raise UserError(f"{path} names the DeepSpeed config {named}, which does not exist (looked in {Path.cwd()} and {path.parent})")
        inner = translate_deepspeed(file, read_json(file), TrainingSizes(processes, training.sequence_length, training.steps))
        lines += [KeyLine(f"{file.name}: {line.key}", line.value, line.outcome) for line in inner]
    return assemble("accelerate", lines, machines, processes)


def read_count(path: Path, values: Mapping[str, JsonValue], key: str) -> int | None:
    """Return a positive number of a launch file; None if it is absent, or `gpu`, or accelerate's -1."""
    value = values.get(key)
    if value in (None, "gpu", -1):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{path}: {key}: {value}; a positive number is expected")
    return value


def assemble(kind: str, lines: list[KeyLine], machines: int, processes: int | None) -> Translation:
    """Config and launch file from the outcomes. Raises `UserError` if two keys set the same config key to different values."""
    config: dict[str, Any] = {}
    owners: dict[str, str] = {}
    launch: dict[str, Any] = {}
    for line in lines:
        launch |= line.outcome.launch
        for key, value in line.outcome.settings.items():
            if key in config and merge_values(key, config[key], value) is None:
                raise UserError(
                    f"{owners[key]} sets {key}: {config[key]}, {line.key} sets {key}: {value}; remove one of them from the file"
                )
            config[key] = merge_values(key, config[key], value) if key in config else value
            owners[key] = line.key
    strategy = config.setdefault("parallel.strategy", "ddp")
    several = processes != 1
    sharded = strategy != "ddp" or config.get("parallel.offload", False)
    distributed = ("FSDP" if sharded else "MULTI_GPU") if several else "NO"
    fsdp = {"fsdp_reshard_after_forward": strategy in ("fsdp", "hsdp"), "fsdp_offload_params": config.get("parallel.offload", False)}
    written = launch_settings(distributed, machines, processes or "gpu", fsdp if distributed == "FSDP" else None)
    return Translation(
        kind, tuple(lines), config, {**written, **{key: launch[key] for key in launch if key in written or key == "gpu_ids"}}
    )


def merge_values(key: str, one: JsonValue, other: JsonValue) -> JsonValue:
    """Return the value where two keys of a file set one config key; None if they contradict each other. Lists are joined, and a strategy
    that another key asks for replaces the one that shards less."""
    if one == other:
        return one
    if isinstance(one, list) and isinstance(other, list):
        return one + [value for value in other if value not in one]
    order = ("ddp", "zero1", "zero2", "fsdp", "hsdp")
    if key == "parallel.strategy":
        return max(one, other, key=order.index)
    return None
