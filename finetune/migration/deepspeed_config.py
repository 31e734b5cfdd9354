"""DeepSpeed's JSON, key by key. Keys and defaults are those of DeepSpeed 0.19 (deepspeed/runtime/config.py, zero/config.py) and of the
documentation of earlier versions, whose files are still in use.

Bytes per parameter of the strategies that the stages become, beside DeepSpeed's own estimators, are in docs/coming_from_deepspeed.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from overtone.finetune.errors import UserError

from .key_rule_engine import AUTO, Given, KeyOutcome, Rule, Rules, expect, if_on, not_needed, not_there, parse_number, sets, unless_auto

if TYPE_CHECKING:
    from pydantic import JsonValue

STRATEGIES: dict[float, str] = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}
"""ZeRO stage → `parallel.strategy`."""
UNCLIPPED = 1e9
"""`train.clip` that clips nothing; DeepSpeed's 0 means the same."""
ADAM_EPSILON = 1e-8
COSINE_FLOOR = 1e-4
"""WarmupCosineLR's `cos_min_ratio`, if a file does not set it."""
BATCH, MICRO, ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
MICS = "zero_optimization.mics_shard_size"
SCHEDULER = "scheduler.params"


def check_batch(given: Given) -> None:
    """Raises `UserError` if the three sizes of the batch contradict each other; DeepSpeed would refuse the file, too."""
    batch, micro, accumulation = given.number(BATCH), given.number(MICRO), given.number(ACCUMULATION)
    if batch and micro and accumulation and given.processes and batch != micro * accumulation * given.processes:
        raise UserError(
            f"{BATCH}: {batch:g} is not {MICRO}: {micro:g} × {ACCUMULATION}: {accumulation:g} × {given.processes} processes = "
            f"{micro * accumulation * given.processes:g}; correct the file, or give the number of processes that it is for as --processes N"
        )


def count_samples(given: Given) -> float | None:
    """Samples per optimizer step over all ranks; None if the file does not say them."""
    micro, accumulation = given.number(MICRO), given.number(ACCUMULATION)
    product = micro * accumulation * given.processes if micro and accumulation and given.processes else None
    return given.number(BATCH) or product


def translate_batch(value: JsonValue, given: Given) -> KeyOutcome:
    if given.sequence_length is None:
        return not_there(
            f"a batch is counted in positions here: train.global_batch_tokens = {value} × positions of a sample; "
            "--sequence-length N computes it"
        )
    return sets(
        "train.global_batch_tokens",
        round(parse_number(value) * given.sequence_length),
        f"{value} samples of {given.sequence_length} positions",
    )


def translate_micro_batch(value: JsonValue, given: Given) -> KeyOutcome:
    if given.sequence_length is None:
        return not_there(f"train.micro_tokens = {value} × positions of a sample; --sequence-length N computes it")
    return sets(
        "train.micro_tokens", round(parse_number(value) * given.sequence_length), f"{value} samples of {given.sequence_length} positions"
    )


def translate_accumulation(value: JsonValue, given: Given) -> KeyOutcome:
    samples = count_samples(given)
    if value in (AUTO, 1) or given.number(BATCH) is not None:
        return not_needed("follows from train.global_batch_tokens, train.micro_tokens and the number of ranks")
    if samples is None:
        return not_there(
            "follows from train.global_batch_tokens; set that to the positions of one optimizer step over all ranks "
            f"(micro-batch × {value} × ranks)"
        )
    return translate_batch(f"{samples:g}", given)


def translate_optimizer(value: JsonValue, given: Given) -> KeyOutcome:
    name = str(value).lower()
    if name in ("adam", "adamw") and given.values.get("optimizer.params.adam_w_mode") is False:
        return not_there("Adam with L2 regularization (adam_w_mode: false); train.optimizer: adamw decays weights separately")
    if name in ("adam", "adamw"):
        return sets("train.optimizer", "adamw", "DeepSpeed's Adam is AdamW, too" if name == "adam" else "")
    if name == "muon":
        return sets("train.optimizer", "muon")
    return not_there("train.optimizer is adamw, adamw_8bit or muon")


def translate_betas(value: JsonValue, _: Given) -> KeyOutcome:
    if not isinstance(value, list) or len(value) != 2:
        raise UserError(f"optimizer.params.betas: {value}; two numbers are expected")
    return KeyOutcome("mapped", f"train.beta1: {value[0]}, train.beta2: {value[1]}", {"train.beta1": value[0], "train.beta2": value[1]})


def translate_rate(value: JsonValue, given: Given) -> KeyOutcome:
    peak = given.values.get(f"{SCHEDULER}.warmup_max_lr", AUTO)
    if peak not in (AUTO, None, value):
        return not_needed(f"{SCHEDULER}.warmup_max_lr replaces it")
    return sets("train.lr", value)


def translate_scheduler(value: JsonValue, given: Given) -> KeyOutcome:
    warm = "the warm-up is linear; DeepSpeed's default is logarithmic"
    if value == "WarmupLR":
        return sets("train.schedule", "constant", warm)
    if value == "WarmupCosineLR":
        floor = given.values.get(f"{SCHEDULER}.cos_min_ratio", COSINE_FLOOR)
        settings: dict[str, JsonValue] = {"train.schedule": "cosine", "train.final_lr": floor}
        return KeyOutcome("mapped", f"train.schedule: cosine, train.final_lr: {floor} ({warm})", settings)
    if value == "WarmupDecayLR":
        return not_there("linear decay; train.schedule is cosine (the nearest) or constant")
    return not_there("train.schedule is cosine or constant")


def translate_warmup(value: JsonValue, given: Given) -> KeyOutcome:
    steps = given.steps or given.number(f"{SCHEDULER}.total_num_steps")
    if not steps:
        return not_there("train.warmup is a fraction of all steps; --steps N computes it")
    return sets("train.warmup", round(min(1.0, parse_number(value) / steps), 6), f"{value} of {steps:g} steps")


def translate_clipping(value: JsonValue, _: Given) -> KeyOutcome:
    return sets("train.clip", UNCLIPPED, "0 was no clipping") if value == 0 else sets("train.clip", parse_number(value))


def translate_stage(value: JsonValue, given: Given) -> KeyOutcome:
    if value not in STRATEGIES or isinstance(value, bool):
        raise UserError(f"ZeRO stage {value} (zero_optimization.stage, or zero_stage in a launch file); known are 0, 1, 2, 3")
    group = given.number(MICS)
    if group and group > 0:
        return not_needed(f"{MICS} chooses the strategy")
    return sets("parallel.strategy", STRATEGIES[value])


def translate_mics(value: JsonValue, given: Given) -> KeyOutcome:
    if not isinstance(value, int) or value <= 0:
        return not_needed("it is off")
    if given.processes is None or given.processes % value:
        return not_there(f"parallel.strategy: hsdp with parallel.replicate = ranks / {value}; --processes N computes it")
    copies = given.processes // value
    if copies == 1:
        return sets("parallel.strategy", "fsdp", "one group of all ranks")
    settings: dict[str, JsonValue] = {"parallel.strategy": "hsdp", "parallel.replicate": copies}
    return KeyOutcome("mapped", f"parallel.strategy: hsdp, parallel.replicate: {copies}", settings)


def translate_device(value: JsonValue, _: Given) -> KeyOutcome:
    if value == "cpu":
        return sets("parallel.offload", True, "weights, gradients and optimizer state; the update runs on the CPU")
    if value == "nvme":
        return not_there("nothing is offloaded to NVMe; parallel.offload: true keeps the states in host memory")
    if value in ("none", None):
        return not_needed("it is off")
    raise UserError(f"offload device {value!r}; known are none, cpu and nvme")


def translate_old_offload(value: JsonValue, given: Given) -> KeyOutcome:
    return translate_device("cpu" if value else "none", given)


def make_nvme_rule(section: str) -> Rule:
    """Return the rule for settings of a swap file, which have no meaning with another device."""
    return lambda _, given: (
        not_there("nothing is offloaded to NVMe") if given.values.get(f"{section}.device") == "nvme" else not_needed("only for NVMe")
    )


def translate_bf16(value: JsonValue, given: Given) -> KeyOutcome:
    if value is True:
        return sets("train.precision", "bf16", "with fp32 master weights")
    if value is False and not given.is_on("fp16.enabled") and given.values.get("fp16.enabled") != AUTO:
        return sets("train.precision", "fp32")
    return not_needed("train.precision decides; bf16 is the default")


def translate_fp16(value: JsonValue, _: Given) -> KeyOutcome:
    if value is True:
        return not_there("fp16 needs loss scaling, which skips steps; train.precision: bf16 has the range of fp32")
    return not_needed("train.precision decides; bf16 is the default")


def translate_reduction_type(value: JsonValue, _: Given) -> KeyOutcome:
    if value in (None, AUTO, "fp32"):
        return not_needed("gradients are reduced and accumulated in fp32")
    return not_there(f"gradients are reduced and accumulated in fp32, not in {value}")


def translate_tensor_parallel(value: JsonValue, _: Given) -> KeyOutcome:
    if not isinstance(value, int) or value <= 1:
        return not_needed("it is off")
    settings: dict[str, JsonValue] = {"parallel.tensor": value, "parallel.strategy": "fsdp"}
    return KeyOutcome("mapped", f"parallel.tensor: {value}, parallel.strategy: fsdp (the one that it works with)", settings)


def translate_print_interval(value: JsonValue, _: Given) -> KeyOutcome:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 1 or value > 10**8:
        return not_needed("log.every decides, default 1")
    return sets("log.every", int(value))


def make_tracker_rule(name: str) -> Rule:
    return lambda value, _: sets("log.trackers", [name]) if value is True else not_needed("it is off")


SCHEDULING = "FSDP2 gathers and reduces each block as one unit, overlapped with the computation; there are no buckets to size"
EXPORTED = "`overtone export` writes one consolidated folder from sharded checkpoints"
ONE_BITWISE = "weights and gradients are gathered and reduced unquantized"
NO_PIPELINE = "there is no pipeline parallelism; parallel.tensor and parallel.strategy: hsdp are"
PROFILED = "every step logs its time and throughput"
OFF = if_on("there is no counterpart")

ZERO: dict[str, Rule] = {
    "stage": unless_auto("parallel.strategy", translate_stage),
    "mics_shard_size": translate_mics,
    "mics_hierarchical_params_gather": not_needed("hsdp gathers within a copy"),
    "offload_param.device": translate_device,
    "offload_optimizer.device": translate_device,
    "offload_param.pin_memory": not_needed("offloaded memory is always pinned"),
    "offload_optimizer.pin_memory": not_needed("offloaded memory is always pinned"),
    "offload_optimizer.ratio": expect(1.0, "all of the optimizer state is offloaded, or nothing"),
    "offload_optimizer.super_offload": OFF,
    "offload_optimizer.cpuadam_cores_perc": not_needed("the update uses torch's threads"),
    "offload_param.*": make_nvme_rule("zero_optimization.offload_param"),
    "offload_optimizer.*": make_nvme_rule("zero_optimization.offload_optimizer"),
    "cpu_offload": translate_old_offload,
    "cpu_offload_param": translate_old_offload,
    "cpu_offload_params": translate_old_offload,
    "cpu_offload_use_pin_memory": not_needed("offloaded memory is always pinned"),
    "zenflow": OFF,
    "zenflow.*": not_there("ZenFlow's partial updates; parallel.offload: true updates everything in each step"),
    "zero_hpz_partition_size": expect(1, "no second shard within a machine; parallel.strategy: hsdp keeps a copy on each machine instead"),
    "zero_quantized_weights": if_on(ONE_BITWISE),
    "zero_quantized_nontrainable_weights": if_on(f"{ONE_BITWISE}; model.quantization: nf4 stores frozen ones in 4 bits"),
    "zero_quantized_gradients": if_on(ONE_BITWISE),
    "zeropp_loco_param": if_on(ONE_BITWISE),
    "zeropp_loco_param.*": not_there(ONE_BITWISE),
    "elastic_checkpoint": not_needed("every checkpoint resumes on another number of ranks"),
    "load_from_fp32_weights": not_needed("checkpoints hold fp32 master weights"),
    "pipeline_loading_checkpoint": not_needed("checkpoints are read in blocks"),
    "override_module_apply": not_needed("weights are created sharded"),
    "ignore_unused_parameters": not_needed("no hook waits for each gradient"),
    "memory_efficient_linear": not_needed("torch's own linear layers are used"),
    "leaf_module.*": not_needed("the recipe names the blocks"),
    "save_muon_momentum_buffer_in_memory": not_needed("sharded checkpoints hold it"),
    **{f"{prefix}gather_{bits}_weights_on_model_save": not_needed(EXPORTED) for prefix in ("", "stage3_") for bits in ("16bit", "fp16")},
    **{
        name: not_needed(SCHEDULING)
        for name in (
            "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce", "allgather_partitions",
            "allgather_bucket_size", "overlap_comm", "compute_grad_norm", "sub_group_size", "round_robin_gradients", "legacy_stage1",
            "parameter_alignment", "log_trace_cache_warnings", "enable_sanity_checks", "model_persistence_threshold",
            "stage3_model_persistence_threshold",
        )
    },
    **{
        f"{prefix}{name}": not_needed(SCHEDULING)
        for prefix in ("", "stage3_")
        for name in (
            "prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters", "max_reuse_distance",
            "module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential",
        )
    },
}  # fmt: skip

RULES: Rules = {
    BATCH: unless_auto("train.global_batch_tokens", translate_batch),
    MICRO: unless_auto("train.micro_tokens", translate_micro_batch),
    ACCUMULATION: translate_accumulation,
    "managed_gradient_accumulation": not_needed("the loop accumulates"),
    "optimizer.type": unless_auto("train.optimizer", translate_optimizer),
    "optimizer.params.lr": unless_auto("train.lr", translate_rate),
    "optimizer.params.betas": unless_auto("train.beta1 and train.beta2", translate_betas),
    "optimizer.params.eps": expect(ADAM_EPSILON, f"AdamW's epsilon is {ADAM_EPSILON:g}"),
    "optimizer.params.weight_decay": unless_auto(
        "train.weight_decay", lambda value, _: sets("train.weight_decay", value, "on matrices only, not on norms, biases and embeddings")
    ),
    "optimizer.params.momentum": unless_auto("train.momentum", lambda value, _: sets("train.momentum", value)),
    "optimizer.params.max_grad_norm": unless_auto("train.clip", translate_clipping),
    "optimizer.params.adam_w_mode": not_needed("optimizer.type takes it into account"),
    "optimizer.params.bias_correction": expect(True, "AdamW corrects the bias of its moments"),
    "optimizer.params.torch_adam": not_needed("torch's AdamW is used"),
    "optimizer.params.fused": not_needed("torch's AdamW is used"),
    "optimizer.legacy_fusion": not_needed("torch's AdamW is used"),
    "scheduler.type": unless_auto("train.schedule", translate_scheduler),
    f"{SCHEDULER}.warmup_max_lr": unless_auto("train.lr", lambda value, _: sets("train.lr", value)),
    f"{SCHEDULER}.warmup_min_lr": expect(0, "the warm-up starts at 0"),
    f"{SCHEDULER}.warmup_min_ratio": expect(0, "the warm-up starts at 0"),
    f"{SCHEDULER}.warmup_num_steps": unless_auto("train.warmup", translate_warmup),
    f"{SCHEDULER}.warmup_type": lambda value, _: (
        not_needed("the warm-up is linear here, too") if value == "linear" else not_there(f"the warm-up is linear here, not {value}")
    ),
    f"{SCHEDULER}.total_num_steps": unless_auto("train.steps", lambda value, _: sets("train.steps", value)),
    f"{SCHEDULER}.cos_min_ratio": unless_auto("train.final_lr", lambda value, _: sets("train.final_lr", value)),
    "gradient_clipping": unless_auto("train.clip", translate_clipping),
    **{f"zero_optimization.{name}": rule for name, rule in ZERO.items()},
    "zero_allow_untested_optimizer": not_needed("the optimizers of train.optimizer are all tested"),
    "zero_force_ds_cpu_optimizer": not_needed("parallel.offload chooses where the update runs"),
    "bf16.enabled": translate_bf16,
    "bfloat16.enabled": translate_bf16,
    "bf16.bf16_master_weights_and_grads": if_on("master weights and gradients are fp32"),
    "bf16.bf16_optimizer_states": if_on("optimizer states are fp32; train.optimizer: adamw_8bit makes them smaller"),
    "bf16.*": not_needed("gradients are accumulated in fp32"),
    "bfloat16.*": not_needed("gradients are accumulated in fp32"),
    "fp16.enabled": translate_fp16,
    "fp16.*": lambda _, given: not_there("there is no fp16") if given.is_on("fp16.enabled") else not_needed("only with fp16"),
    "amp.enabled": if_on("apex; train.precision: bf16 is autocast with fp32 weights"),
    "amp.*": not_needed("only with apex"),
    "torch_autocast.enabled": if_on("train.precision: bf16 does the same"),
    "torch_autocast.*": not_needed("train.precision: bf16 does the same"),
    "communication_data_type": translate_reduction_type,
    "seq_parallel_communication_data_type": not_needed("there is no sequence parallelism"),
    "data_types.grad_accum_dtype": translate_reduction_type,
    "data_types.*": not_needed("weights are fp32, the computation is train.precision"),
    "prescale_gradients": not_needed("sums are divided once, by the global number of targets"),
    "gradient_predivide_factor": not_needed("sums are divided once, by the global number of targets"),
    "gradient_allreduce_op": not_needed("sums are divided once, by the global number of targets"),
    "sparse_gradients": if_on("gradients of embeddings are dense"),
    "disable_allgather": OFF,
    "steps_per_print": translate_print_interval,
    "tensorboard.enabled": make_tracker_rule("tensorboard"),
    "wandb.enabled": make_tracker_rule("wandb"),
    "csv_monitor.enabled": not_needed("log.jsonl in the run's folder has all metrics"),
    "comet.enabled": if_on("log.trackers is tensorboard, wandb or trackio"),
    **{f"{name}.*": not_needed("the run's folder names the run") for name in ("tensorboard", "wandb", "csv_monitor", "comet")},
    "flops_profiler.*": not_needed(PROFILED),
    "comms_logger.*": not_needed(PROFILED),
    **{name: not_needed(PROFILED) for name in ("wall_clock_breakdown", "memory_breakdown", "dump_state", "disable_python_gc", "log_level")},
    "dataloader_drop_last": if_on("no sample is dropped; the last step of an epoch has fewer"),
    "activation_checkpointing.partition_activations": if_on(
        "activations are not sharded; train.activation_checkpointing: full stores fewest"
    ),
    "activation_checkpointing.cpu_checkpointing": if_on("activations stay on the GPU; train.activation_checkpointing: full stores fewest"),
    "activation_checkpointing.*": not_needed("train.activation_checkpointing turns recomputation on; none, selective or full"),
    "compile.disable": lambda value, _: sets("train.compile", not value),
    "compile.enabled": lambda value, _: sets("train.compile", bool(value)),
    "compile.backend": expect("inductor", "train.compile uses inductor"),
    "compile.*": OFF,
    "checkpoint.*": not_needed("every checkpoint is verified, and resumes on another number of ranks"),
    "elasticity.*": not_there("the number of ranks does not change within a launch; the same command resumes on another number"),
    "autotuning.*": not_there("`overtone plan --gpus N` chooses a layout by its memory and time"),
    "tensor_parallel.autotp_size": translate_tensor_parallel,
    "tensor_parallel.tp_size": translate_tensor_parallel,
    "tensor_parallel.*": not_needed("the model's own plan is used"),
    "sequence_parallel_size": expect(1, "there is no sequence parallelism; parallel.tensor shards long activations, too"),
    "pipeline_parallel_size": expect(1, NO_PIPELINE),
    "pipeline.*": not_there(NO_PIPELINE),
    "pipeline": if_on(NO_PIPELINE),
    "aio.*": not_needed("only for NVMe"),
    "data_efficiency.*": not_there("no curriculum and no random layer-token dropping"),
    "curriculum_learning.*": not_there("samples are shuffled, not ordered by difficulty"),
    "compression_training.*": not_there("no quantization-aware training and no pruning; model.quantization: nf4 is QLoRA"),
    "progressive_layer_drop.*": not_there("all layers run in each step"),
    "eigenvalue.*": not_there("no quantization by eigenvalues"),
    "sparse_attention.*": not_there("attention is the model's own"),
    "weight_quantization.*": not_there("model.quantization: nf4 stores frozen weights in 4 bits"),
    "hybrid_engine.*": not_there("no generation inside the training process; sample.prompts generates beside it"),
    "nebula.*": not_needed("checkpoint.copy_to copies each checkpoint to object storage"),
    "use_data_before_expert_parallelism": if_on("there is no expert parallelism"),
    "graph_harvesting": if_on("train.compile reduces launches"),
}
