"""Launch file for accelerate, and the launch command, for a parallel layout that the planner chose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from overtone.finetune import command_lines
from overtone.finetune.hardware.gpu_specs import Cluster
from overtone.finetune.planning.launch_file_content import PORT, launch_settings
from overtone.finetune.planning.memory import Arrangement
from overtone.finetune.planning.parallelism_planner import LayoutEstimate


def format_launch_command(verdict: LayoutEstimate, cluster: Cluster, file: Path | None, arguments: Sequence[str]) -> str:
    """Return the command that trains with this layout. `file`: its launch file; None: one that comes with the package, or no launcher for
    one process. `arguments`: those of the training. On other machines the same with their --machine_rank; 10.0.0.1 is to be replaced."""
    words = [*arguments, *list_overrides(verdict)]
    machine = ["--machine_rank", 0, "--main_process_ip", "10.0.0.1"] if cluster.nodes > 1 else []
    if file is not None:
        return command_lines.launch_command(file, machine, words)
    if cluster.ranks == 1 and not verdict.arrangement.offload:
        return command_lines.overtone_command("train", *words)
    several = ["--num_machines", cluster.nodes, *machine, "--main_process_port", PORT] if cluster.nodes > 1 else []
    shipped = "ddp.yaml" if distributed_type(verdict.arrangement) == "MULTI_GPU" else "fsdp2.yaml"
    shipped = "fsdp2_offload.yaml" if verdict.arrangement.offload else shipped
    return command_lines.launch_command(command_lines.launch_file(shipped), ["--num_processes", cluster.ranks, *several], words)


def format_launch_file(verdict: LayoutEstimate, cluster: Cluster, file: Path, arguments: Sequence[str]) -> str:
    """A launch file as YAML; its first line is a comment with the launch command. `arguments`: those of the training."""
    arrangement = verdict.arrangement
    fsdp = {"fsdp_reshard_after_forward": not arrangement.gathers_all, "fsdp_offload_params": arrangement.offload}
    kind = distributed_type(arrangement)
    values = launch_settings(kind, cluster.nodes, cluster.ranks, fsdp if kind == "FSDP" else None)
    first = f"# {format_launch_command(verdict, cluster, file, arguments)}"
    again = "# The same on each other machine with its own --machine_rank; the address is that of machine 0.\n" if cluster.nodes > 1 else ""
    return f"{first}\n{again}{yaml.safe_dump(values, sort_keys=False)}"


def distributed_type(arrangement: Arrangement) -> str:
    """`distributed_type` of accelerate for a layout."""
    if arrangement.ranks == 1:
        return "NO"
    return "MULTI_GPU" if arrangement.strategy == "ddp" else "FSDP"


def list_overrides(verdict: LayoutEstimate) -> list[str]:
    """Config overrides for this layout, as words of a command line; without those that the launch file implies."""
    arrangement = verdict.arrangement
    overrides = {
        "parallel.strategy": arrangement.strategy if arrangement.strategy not in ("ddp", "fsdp") else None,
        "parallel.replicate": arrangement.replicate if arrangement.replicate > 1 else None,
        "parallel.tensor": arrangement.tensor if arrangement.tensor > 1 else None,
        "parallel.offload": "true" if arrangement.offload else None,
        "train.activation_checkpointing": verdict.recomputing if verdict.recomputing != "none" else None,
    }
    return [word for key, value in overrides.items() if value is not None for word in (f"--{key}", str(value))]
