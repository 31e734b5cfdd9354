"""Launch file for accelerate, and the launch command, for a parallel layout that the planner chose."""

from __future__ import annotations

import yaml

from finetune.hardware.gpus import Cluster
from finetune.planning.memory import Arrangement
from finetune.planning.parallelism_planner import LayoutEstimate

PORT = 29500


def format_launch_file(verdict: LayoutEstimate, cluster: Cluster, name: str, command: str) -> str:
    """A launch file as YAML; its first line is a comment with the launch command. `name`: path of the file. `command`: the other
    arguments."""
    arrangement = verdict.arrangement
    values: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type(arrangement),
        "num_machines": cluster.nodes,
        "num_processes": cluster.ranks,
        "machine_rank": 0,
        **({"main_process_ip": "127.0.0.1"} if cluster.nodes > 1 else {}),
        **({} if cluster.ranks == 1 else {"main_process_port": PORT if cluster.nodes > 1 else 0, "rdzv_backend": "static"}),
        **({"same_network": True} if cluster.ranks > 1 else {}),
        "mixed_precision": "no",  # the recipe's config owns precision
        "use_cpu": False,
    }
    if distributed_type(arrangement) == "FSDP":
        values["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": not arrangement.gathers_all,
            "fsdp_offload_params": arrangement.offload,
            "fsdp_cpu_ram_efficient_loading": False,
        }
    several = " --machine_rank 0 --main_process_ip 10.0.0.1" if cluster.nodes > 1 else ""
    first = f"# accelerate launch --config_file {name}{several} finetune/train.py {command}{format_overrides(verdict)}"
    again = "# The same on each other machine with its own --machine_rank; the address is that of machine 0.\n" if cluster.nodes > 1 else ""
    return f"{first}\n{again}{yaml.safe_dump(values, sort_keys=False)}"


def distributed_type(arrangement: Arrangement) -> str:
    """`distributed_type` of accelerate for a layout."""
    if arrangement.ranks == 1:
        return "NO"
    return "MULTI_GPU" if arrangement.strategy == "ddp" else "FSDP"


def format_overrides(verdict: LayoutEstimate) -> str:
    """Config overrides for this layout, as command-line flags; without those that the launch file implies."""
    arrangement = verdict.arrangement
    overrides = {
        "parallel.strategy": arrangement.strategy if arrangement.strategy not in ("ddp", "fsdp") else None,
        "parallel.replicate": arrangement.replicate if arrangement.replicate > 1 else None,
        "parallel.tensor": arrangement.tensor if arrangement.tensor > 1 else None,
        "parallel.offload": "true" if arrangement.offload else None,
        "train.activation_checkpointing": verdict.recomputing if verdict.recomputing != "none" else None,
    }
    return "".join(f" --{key} {value}" for key, value in overrides.items() if value is not None)
