"""The keys of a launch file for accelerate that are the same for every model. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

PORT = 29500


def launch_settings(distributed_type: str, machines: int, processes: int | str, fsdp: Mapping[str, bool] | None) -> dict[str, object]:
    """Return the content of a launch file. `processes`: over all machines, or `gpu`, one for each that is visible; `fsdp`: what its section
    says of resharding and offloading, None without that section."""
    values: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type,
        "num_machines": machines,
        "num_processes": processes,
        "machine_rank": 0,
        **({"main_process_ip": "127.0.0.1"} if machines > 1 else {}),
        **({} if processes == 1 else {"main_process_port": PORT if machines > 1 else 0, "rdzv_backend": "static", "same_network": True}),
        "mixed_precision": "no",  # the recipe's config owns precision
        "use_cpu": False,
    }
    if fsdp is not None:
        values["fsdp_config"] = {"fsdp_version": 2, **fsdp, "fsdp_cpu_ram_efficient_loading": False}
    return values
