"""The launch file of several machines names how their ranks meet; that of one process needs none of it."""

from __future__ import annotations

from overtone.finetune.planning.launch_file_content import PORT, launch_settings


def test_ranks_on_one_machine_meet_on_any_free_port() -> None:
    found = launch_settings("MULTI_GPU", 1, "gpu", None)
    assert found["main_process_port"] == 0 and "main_process_ip" not in found and "fsdp_config" not in found


def test_machines_meet_at_the_first() -> None:
    found = launch_settings("FSDP", 2, 16, {"fsdp_reshard_after_forward": True, "fsdp_offload_params": False})
    assert (found["main_process_port"], found["main_process_ip"], found["num_machines"]) == (PORT, "127.0.0.1", 2)
    assert found["fsdp_config"] == {
        "fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False, "fsdp_cpu_ram_efficient_loading": False,
    }  # fmt: skip


def test_one_process_meets_nobody() -> None:
    assert not {"main_process_port", "rdzv_backend", "same_network"} & set(launch_settings("NO", 1, 1, None))
