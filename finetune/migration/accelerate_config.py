"""accelerate's launch file, key by key, with its DeepSpeed, FSDP and parallelism sections (accelerate 1.10 to 1.14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overtone.finetune.errors import UserError

from . import deepspeed_config
from .key_rule_engine import Given, KeyOutcome, Rule, Rules, expect, if_on, not_needed, not_there, sets

if TYPE_CHECKING:
    from pydantic import JsonValue

KEPT = ("machine_rank", "main_process_ip", "main_process_port", "gpu_ids", "num_machines")
"""Keys of the launch file that stay as they are."""
SHARDING = {
    "1": "fsdp", "FULL_SHARD": "fsdp", "2": "zero2", "SHARD_GRAD_OP": "zero2", "3": "ddp", "NO_SHARD": "ddp",
    "4": "hsdp", "HYBRID_SHARD": "hsdp",
}  # fmt: skip
"""FSDP1's sharding strategies, by number and by name → `parallel.strategy`."""


def keep(key: str) -> Rule:
    return lambda value, _: KeyOutcome("mapped", f"launch file: {key}: {value}", launch={key: value})


def translate_count(value: JsonValue, given: Given) -> KeyOutcome:
    """`num_processes`, which accelerate does not read for `distributed_type: NO`."""
    if given.values.get("distributed_type") == "NO":
        return not_needed("distributed_type: NO is one process")
    count = "gpu" if value == -1 else value
    return KeyOutcome("mapped", f"launch file: num_processes: {count}", launch={"num_processes": count})


def translate_type(value: JsonValue, _: Given) -> KeyOutcome:
    """`distributed_type`. Raises `UserError` for a kind of machine that there is no strategy for."""
    texts = {"DEEPSPEED": "the section deepspeed_config", "FSDP": "the section fsdp_config"}
    if value in texts:
        return not_needed(f"{texts[value]} chooses the strategy")
    if value in ("NO", "MULTI_GPU", "MULTI_CPU"):
        return sets("parallel.strategy", "ddp", "the whole model on each rank")
    raise UserError(f"distributed_type: {value}; known are NO, MULTI_GPU, MULTI_CPU, FSDP and DEEPSPEED. Other hardware is not supported")


def translate_precision(value: JsonValue, _: Given) -> KeyOutcome:
    if value in ("no", False, None):
        return sets("train.precision", "fp32")
    if value == "bf16":
        return sets("train.precision", "bf16", "with fp32 master weights")
    if value == "fp16":
        return not_there("fp16 needs loss scaling, which skips steps; train.precision: bf16 has the range of fp32")
    return not_there("train.precision is bf16 or fp32")


def translate_sharding(value: JsonValue, given: Given) -> KeyOutcome:
    """FSDP1's sharding strategy, or FSDP2's switch for resharding after the forward pass."""
    if value is True:
        return sets("parallel.strategy", "fsdp")
    if value is False:
        return sets("parallel.strategy", "zero2", "weights stay gathered between forward and backward pass")
    strategy = SHARDING.get(str(value))
    if strategy is None:
        return not_there(f"parallel.strategy has no counterpart of {value}; hsdp is the nearest")
    if strategy != "hsdp":
        return sets("parallel.strategy", strategy)
    if given.machines == 1:
        return sets("parallel.strategy", "fsdp", "on one machine, the same as HYBRID_SHARD")
    settings: dict[str, JsonValue] = {"parallel.strategy": "hsdp", "parallel.replicate": given.machines}
    return KeyOutcome("mapped", f"parallel.strategy: hsdp, parallel.replicate: {given.machines} (one copy on each machine)", settings)


def translate_old_sharding(value: JsonValue, given: Given) -> KeyOutcome:
    """`fsdp_sharding_strategy`, which `fsdp_reshard_after_forward` replaces."""
    if "fsdp_config.fsdp_reshard_after_forward" in given.values:
        return not_needed("fsdp_reshard_after_forward chooses the strategy")
    return translate_sharding(value, given)


def translate_replicas(value: JsonValue, _: Given) -> KeyOutcome:
    if not isinstance(value, int) or value <= 1:
        return not_needed("one copy")
    settings: dict[str, JsonValue] = {"parallel.strategy": "hsdp", "parallel.replicate": value}
    return KeyOutcome("mapped", f"parallel.strategy: hsdp, parallel.replicate: {value}", settings)


def translate_compiler(value: JsonValue, _: Given) -> KeyOutcome:
    backend = str(value).upper()
    if backend == "NO":
        return sets("train.compile", False)
    return sets("train.compile", True) if backend == "INDUCTOR" else not_there("train.compile uses inductor")


def translate_cpu(value: JsonValue, _: Given) -> KeyOutcome:
    return (
        KeyOutcome("mapped", "launch file: no GPU is visible to the ranks", launch={"gpu_ids": "-1,-1"})
        if value
        else not_needed("it is off")
    )


LOADED = "rank 0 reads the weights, and every rank gets its shards"
BLOCKS = "the recipe names the blocks to shard"
FSDP: dict[str, Rule] = {
    "fsdp_version": not_needed("always FSDP2"),
    "fsdp_reshard_after_forward": translate_sharding,
    "fsdp_sharding_strategy": translate_old_sharding,
    "fsdp_offload_params": lambda value, given: deepspeed_config.translate_old_offload(value, given),
    "fsdp_activation_checkpointing": lambda value, _: sets("train.activation_checkpointing", "full" if value else "none"),
    **{f"fsdp_{name}": not_needed(BLOCKS) for name in ("auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params")},
    "fsdp_ignored_modules": if_on("every module is sharded"),
    "fsdp_state_dict_type": not_needed("checkpoints are sharded, `overtone export` consolidates them"),
    "fsdp_use_orig_params": not_needed("FSDP2 keeps the parameters"),
    "fsdp_sync_module_states": not_needed(LOADED),
    "fsdp_cpu_ram_efficient_loading": not_needed(LOADED),
    "fsdp_backward_prefetch": not_needed("FSDP2 prefetches the next unit"),
    "fsdp_backward_prefetch_policy": not_needed("FSDP2 prefetches the next unit"),
    "fsdp_forward_prefetch": not_needed("FSDP2 prefetches the next unit"),
}
DEEPSPEED: dict[str, Rule] = {
    "zero_stage": deepspeed_config.RULES["zero_optimization.stage"],
    "gradient_accumulation_steps": deepspeed_config.RULES["gradient_accumulation_steps"],
    "gradient_clipping": deepspeed_config.RULES["gradient_clipping"],
    "offload_optimizer_device": deepspeed_config.translate_device,
    "offload_param_device": deepspeed_config.translate_device,
    "offload_optimizer_nvme_path": if_on("nothing is offloaded to NVMe"),
    "offload_param_nvme_path": if_on("nothing is offloaded to NVMe"),
    "zero3_init_flag": not_needed("weights are created sharded"),
    "zero3_save_16bit_model": not_needed(deepspeed_config.EXPORTED),
    "deepspeed_multinode_launcher": not_needed("accelerate launch starts the ranks of each machine"),
    "deepspeed_hostfile": not_there("start the same command on each machine, with its --machine_rank"),
    "deepspeed_inclusion_filter": not_there("gpu_ids, or CUDA_VISIBLE_DEVICES, chooses the GPUs of a machine"),
    "deepspeed_exclusion_filter": not_there("gpu_ids, or CUDA_VISIBLE_DEVICES, chooses the GPUs of a machine"),
    "deepspeed_moe_layer_cls_names": if_on(BLOCKS),
}
PARALLELISM: dict[str, Rule] = {
    "tp_size": deepspeed_config.translate_tensor_parallel,
    "dp_replicate_size": translate_replicas,
    "dp_shard_size": not_needed("the number of ranks / parallel.replicate / parallel.tensor"),
    "cp_size": expect(1, "there is no context parallelism; parallel.tensor shards long activations, too"),
    "sp_size": expect(1, "there is no sequence parallelism"),
    "ep_size": expect(1, "there is no expert parallelism"),
    "cp_comm_strategy": not_needed("there is no context parallelism"),
}
RULES: Rules = {
    **{key: keep(key) for key in KEPT},
    "num_processes": translate_count,
    "rdzv_backend": expect("static", "ranks meet at main_process_ip and main_process_port"),
    "same_network": not_needed("every launch file has it"),
    "compute_environment": expect("LOCAL_MACHINE", "`overtone ray-train` runs on clusters, docs/multi_node.md on SLURM"),
    "distributed_type": translate_type,
    "mixed_precision": translate_precision,
    "use_cpu": translate_cpu,
    "downcast_bf16": if_on("for TPUs alone"),
    "enable_cpu_affinity": if_on("the launcher does not bind ranks to cores"),
    "debug": not_needed("collectives have a time limit, and a rank that hangs is named"),
    "main_training_function": not_needed("for TPUs alone"),
    **{name: if_on("for TPUs alone") for name in ("tpu_use_cluster", "tpu_use_sudo", "tpu_name", "tpu_zone", "tpu_vm", "tpu_env")},
    **{name: if_on("for TPUs alone") for name in ("commands", "command_file")},
    "gradient_accumulation_steps": deepspeed_config.RULES["gradient_accumulation_steps"],
    "dynamo_config.dynamo_backend": translate_compiler,
    "dynamo_backend": translate_compiler,
    "dynamo_config.*": not_needed("train.compile compiles each block"),
    **{f"fsdp_config.{name}": rule for name, rule in FSDP.items()},
    **{f"deepspeed_config.{name}": rule for name, rule in DEEPSPEED.items()},
    **{f"parallelism_config.{prefix}{name}": rule for prefix in ("", "parallelism_config_") for name, rule in PARALLELISM.items()},
    **{name: not_needed("an empty section") for name in ("deepspeed_config", "fsdp_config", "parallelism_config", "dynamo_config")},
    **{name: if_on("for other hardware") for name in ("ipex_config", "mpirun_config", "megatron_lm_config", "fp8_config")},
    "fp8_config.*": not_there("train.precision is bf16 or fp32"),
    "megatron_lm_config.*": not_there("of Megatron's parallelism there is parallel.tensor"),
    "ipex_config.*": not_there("for other hardware"),
    "mpirun_config.*": not_there("torch's launcher starts the ranks"),
}
