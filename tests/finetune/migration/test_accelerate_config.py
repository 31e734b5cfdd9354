"""Launch files of accelerate, with the settings of the files that TRL ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

from overtone.finetune.errors import UserError
from overtone.finetune.migration.accelerate_config import RULES
from overtone.finetune.migration.key_rule_engine import Given, Kind, judge
from overtone.finetune.migration.launch_file_translation import TrainingSizes, Translation, translate_file

MACHINE: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE", "debug": False, "downcast_bf16": "no", "enable_cpu_affinity": False, "machine_rank": 0,
    "main_training_function": "main", "mixed_precision": "bf16", "num_machines": 1, "num_processes": 8, "rdzv_backend": "static",
    "same_network": True, "tpu_env": [], "tpu_use_cluster": False, "tpu_use_sudo": False, "use_cpu": False,
}  # fmt: skip
FSDP = {
    "fsdp_activation_checkpointing": False, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_offload_params": False, "fsdp_reshard_after_forward": True, "fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_version": 2,
}  # fmt: skip
OF_TRL: dict[str, tuple[dict[str, Any], str, str]] = {
    "single_gpu": ({"distributed_type": "NO", "gpu_ids": "all"}, "ddp", "NO"),
    "multi_gpu": ({"distributed_type": "MULTI_GPU", "gpu_ids": "all"}, "ddp", "MULTI_GPU"),
    "zero1": ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 1, "gradient_accumulation_steps": 1}}, "zero1", "FSDP"),
    "zero2": ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2, "offload_param_device": "none"}}, "zero2", "FSDP"),
    "zero3": (
        {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3, "zero3_init_flag": True, "zero3_save_16bit_model": True}},
        "fsdp",
        "FSDP",
    ),
    "fsdp1": (
        {"distributed_type": "FSDP", "fsdp_config": {**FSDP, "fsdp_version": 1, "fsdp_reshard_after_forward": "FULL_SHARD"}},
        "fsdp",
        "FSDP",
    ),
    "fsdp2": ({"distributed_type": "FSDP", "fsdp_config": FSDP}, "fsdp", "FSDP"),
}
"""What each of its files sets beside `MACHINE`; our strategy; our launch file's type."""


def translated(folder: Path, values: dict[str, Any]) -> Translation:
    path = folder / "theirs.yaml"
    path.write_text(yaml.safe_dump({**MACHINE, **values}), encoding="utf-8")
    return translate_file(path, TrainingSizes())


@pytest.mark.parametrize("name", OF_TRL)
def test_the_files_of_trl_are_translated_whole(name: str, tmp_path: Path) -> None:
    values, strategy, kind = OF_TRL[name]
    found = translated(tmp_path, values)
    assert found.config["parallel.strategy"] == strategy and found.config["train.precision"] == "bf16"
    assert not found.list_lines("not there") and not found.list_lines("unknown")
    written = tmp_path / "ours.yaml"
    written.write_text(yaml.safe_dump(dict(found.launch)), encoding="utf-8")
    read = load_config_from_file(str(written))
    assert str(getattr(read.distributed_type, "value", read.distributed_type)) == kind
    assert read.num_processes == (1 if name == "single_gpu" else 8) and read.mixed_precision == "no"
    assert found.launch.get("fsdp_config", {}).get("fsdp_reshard_after_forward", strategy == "fsdp") == (strategy == "fsdp")


@pytest.mark.parametrize(
    ("key", "value", "kind", "says"),
    [
        ("fsdp_config.fsdp_sharding_strategy", "SHARD_GRAD_OP", "mapped", "zero2"),
        ("fsdp_config.fsdp_sharding_strategy", 3, "mapped", "ddp"),
        ("fsdp_config.fsdp_sharding_strategy", "HYBRID_SHARD_ZERO2", "not there", "hsdp"),
        ("fsdp_config.fsdp_reshard_after_forward", False, "mapped", "zero2"),
        ("fsdp_config.fsdp_offload_params", True, "mapped", "parallel.offload: true"),
        ("fsdp_config.fsdp_activation_checkpointing", True, "mapped", "train.activation_checkpointing: full"),
        ("dynamo_config.dynamo_backend", "INDUCTOR", "mapped", "train.compile: true"),
        ("dynamo_config.dynamo_mode", "default", "not needed", "block"),
        ("parallelism_config.parallelism_config_tp_size", 2, "mapped", "parallel.tensor: 2"),
        ("parallelism_config.parallelism_config_dp_replicate_size", 2, "mapped", "hsdp"),
        ("parallelism_config.parallelism_config_cp_size", 4, "not there", "context"),
        ("deepspeed_config.offload_optimizer_device", "nvme", "not there", "NVMe"),
        ("deepspeed_config.deepspeed_hostfile", "hosts", "not there", "--machine_rank"),
        ("mixed_precision", "no", "mapped", "fp32"),
        ("mixed_precision", "fp16", "not there", "loss scaling"),
        ("mixed_precision", "fp8", "not there", "bf16 or fp32"),
        ("megatron_lm_config.megatron_lm_tp_degree", 2, "not there", "parallel.tensor"),
        ("compute_environment", "AMAZON_SAGEMAKER", "not there", "SLURM"),
        ("no_such_key", 1, "unknown", "look up"),
    ],
)
def test_a_key_of_accelerate_has_its_outcome(key: str, value: Any, kind: Kind, says: str) -> None:
    found = judge(RULES, key, value, Given({key: value}))
    assert found.kind == kind and says in found.text


@pytest.mark.parametrize(("machines", "expected"), [(1, ("fsdp", None)), (2, ("hsdp", 2))])
def test_hybrid_shards_are_one_copy_on_each_machine(machines: int, expected: tuple[str, int | None], tmp_path: Path) -> None:
    values = {"distributed_type": "FSDP", "num_machines": machines, "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"}}
    config = translated(tmp_path, values).config
    assert (config["parallel.strategy"], config.get("parallel.replicate")) == expected


def test_ranks_on_cpus_see_no_gpu(tmp_path: Path) -> None:
    found = translated(tmp_path, {"distributed_type": "MULTI_CPU", "use_cpu": True, "num_processes": 2})
    assert (found.launch["gpu_ids"], found.launch["distributed_type"], found.launch["num_processes"]) == ("-1,-1", "MULTI_GPU", 2)


def test_other_hardware_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="distributed_type: XLA; known are"):
        translated(tmp_path, {"distributed_type": "XLA"})
