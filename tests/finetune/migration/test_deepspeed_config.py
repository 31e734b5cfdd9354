"""Each key of a DeepSpeed config: its outcome and what it sets. The stages' bytes agree with DeepSpeed's own estimators."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.finetune.migration.deepspeed_config import RULES, STRATEGIES
from overtone.finetune.migration.key_rule_engine import Given, KeyOutcome, Kind, flatten_keys, judge
from overtone.finetune.migration.launch_file_translation import TrainingSizes, assemble, translate_deepspeed
from overtone.finetune.planning.activation_memory import Activations
from overtone.finetune.planning.memory import Arrangement, Outline, ParameterOutline, Unit, estimate_memory
from overtone.recipes.llm_sft.options import Options

FILE = Path("ds.json")
NOTHING = Activations(blocks=0, loss=0, working=0, kept=0, flops=0.0, positions=1)


def outcome(key: str, value: Any, training: TrainingSizes | None = None, **others: Any) -> KeyOutcome:
    values = {key: value, **{name.replace("__", "."): other for name, other in others.items()}}
    training = training or TrainingSizes()
    return judge(RULES, key, value, Given(values, training.processes, 1, training.sequence_length, training.steps))


@pytest.mark.parametrize(
    ("key", "value", "settings"),
    [
        ("zero_optimization.stage", 0, {"parallel.strategy": "ddp"}),
        ("zero_optimization.stage", 1, {"parallel.strategy": "zero1"}),
        ("zero_optimization.stage", 2, {"parallel.strategy": "zero2"}),
        ("zero_optimization.stage", 3, {"parallel.strategy": "fsdp"}),
        ("zero_optimization.offload_optimizer.device", "cpu", {"parallel.offload": True}),
        ("zero_optimization.offload_param.device", "cpu", {"parallel.offload": True}),
        ("zero_optimization.cpu_offload", True, {"parallel.offload": True}),
        ("bf16.enabled", True, {"train.precision": "bf16"}),
        ("bf16.enabled", False, {"train.precision": "fp32"}),
        ("optimizer.type", "Adam", {"train.optimizer": "adamw"}),
        ("optimizer.type", "AdamW", {"train.optimizer": "adamw"}),
        ("optimizer.type", "Muon", {"train.optimizer": "muon"}),
        ("optimizer.params.lr", 3e-5, {"train.lr": 3e-5}),
        ("optimizer.params.betas", [0.9, 0.98], {"train.beta1": 0.9, "train.beta2": 0.98}),
        ("optimizer.params.weight_decay", 0.1, {"train.weight_decay": 0.1}),
        ("scheduler.type", "WarmupLR", {"train.schedule": "constant"}),
        ("scheduler.type", "WarmupCosineLR", {"train.schedule": "cosine", "train.final_lr": 0.0001}),
        ("scheduler.params.cos_min_ratio", 0.2, {"train.final_lr": 0.2}),
        ("scheduler.params.total_num_steps", 500, {"train.steps": 500}),
        ("scheduler.params.warmup_max_lr", 1e-4, {"train.lr": 1e-4}),
        ("gradient_clipping", 0.5, {"train.clip": 0.5}),
        ("gradient_clipping", 0, {"train.clip": 1e9}),
        ("steps_per_print", 10, {"log.every": 10}),
        ("wandb.enabled", True, {"log.trackers": ["wandb"]}),
        ("tensor_parallel.autotp_size", 4, {"parallel.tensor": 4, "parallel.strategy": "fsdp"}),
        ("compile.disable", False, {"train.compile": True}),
    ],
)
def test_a_key_becomes_ours(key: str, value: Any, settings: dict[str, Any]) -> None:
    found = outcome(key, value)
    assert (found.kind, found.settings) == ("mapped", settings)
    resolve("llm_sft", Options, [], [(name, str(one).replace("'", '"')) for name, one in settings.items()])  # keys and values exist


@pytest.mark.parametrize(
    ("key", "value", "kind", "says"),
    [
        ("fp16.enabled", True, "not there", "loss scaling"),
        ("fp16.enabled", "auto", "not needed", "bf16"),
        ("fp16.loss_scale_window", 1000, "not needed", "only with fp16"),
        ("amp.enabled", True, "not there", "apex"),
        ("zero_optimization.offload_optimizer.device", "nvme", "not there", "NVMe"),
        ("zero_optimization.offload_param.buffer_count", 5, "not needed", "only for NVMe"),
        ("zero_optimization.offload_optimizer.ratio", 0.3, "not there", "or nothing"),
        ("zero_optimization.zero_hpz_partition_size", 8, "not there", "hsdp"),
        ("zero_optimization.zero_quantized_weights", True, "not there", "unquantized"),
        ("zero_optimization.zero_quantized_weights", False, "not needed", "off"),
        ("zero_optimization.stage3_gather_16bit_weights_on_model_save", True, "not needed", "export"),
        ("zero_optimization.reduce_bucket_size", 5e8, "not needed", "FSDP2"),
        ("zero_optimization.zenflow.topk_ratio", 0.1, "not there", "ZenFlow"),
        ("optimizer.type", "Lamb", "not there", "muon"),
        ("optimizer.params.eps", 1e-8, "not needed", "how it is here"),
        ("optimizer.params.eps", 1e-6, "not there", "1e-08"),
        ("scheduler.type", "WarmupDecayLR", "not there", "cosine (the nearest)"),
        ("scheduler.params.warmup_type", "log", "not there", "linear"),
        ("communication_data_type", "bf16", "not there", "fp32"),
        ("pipeline.stages", 4, "not there", "pipeline"),
        ("sequence_parallel_size", 4, "not there", "sequence"),
        ("elasticity.enabled", True, "not there", "resumes"),
        ("gradient_accumulation_steps", 4, "not there", "micro-batch × 4 × ranks"),
        ("gradient_accumulation_steps", "auto", "not needed", "global_batch_tokens"),
        ("train_batch_size", 32, "not there", "--sequence-length"),
        ("train_micro_batch_size_per_gpu", 4, "not there", "--sequence-length"),
        ("scheduler.params.warmup_num_steps", 100, "not there", "--steps"),
        ("optimizer.params.no_such_parameter", 1, "unknown", "look up"),
        ("no_such_section.key", 1, "unknown", "look up"),
    ],
)
def test_a_key_that_sets_nothing_says_why(key: str, value: Any, kind: Kind, says: str) -> None:
    found = outcome(key, value)
    assert found.kind == kind and not found.settings and says in found.text


@pytest.mark.parametrize(
    "key",
    [
        "zero_optimization.stage",
        "optimizer.params.lr",
        "optimizer.params.weight_decay",
        "scheduler.params.warmup_num_steps",
        "scheduler.params.total_num_steps",
        "gradient_clipping",
        "optimizer.params.max_grad_norm",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
    ],
)
def test_auto_leaves_our_key_alone_and_names_it(key: str) -> None:
    found = outcome(key, "auto")
    assert found.kind == "not needed" and "auto" in found.text and not found.settings


def test_batches_become_positions() -> None:
    known = TrainingSizes(processes=8, sequence_length=2048)
    assert outcome("train_batch_size", 64, known).settings == {"train.global_batch_tokens": 64 * 2048}
    assert outcome("train_micro_batch_size_per_gpu", 2, known).settings == {"train.micro_tokens": 4096}
    of_parts = outcome("gradient_accumulation_steps", 4, known, train_micro_batch_size_per_gpu=2)
    assert of_parts.settings == {"train.global_batch_tokens": 2 * 4 * 8 * 2048}
    given = outcome("gradient_accumulation_steps", 4, known, train_micro_batch_size_per_gpu=2, train_batch_size=64)
    assert given.kind == "not needed", "the size of the whole batch sets it"


def test_the_warm_up_is_a_share_of_all_steps() -> None:
    assert outcome("scheduler.params.warmup_num_steps", 50, TrainingSizes(steps=1000)).settings == {"train.warmup": 0.05}
    of_file = outcome("scheduler.params.warmup_num_steps", 50, scheduler__params__total_num_steps=500)
    assert of_file.settings == {"train.warmup": 0.1}


def test_the_scheduler_replaces_the_rate_of_the_optimizer() -> None:
    assert outcome("optimizer.params.lr", 1e-3, scheduler__params__warmup_max_lr=1e-4).kind == "not needed"
    assert outcome("optimizer.params.lr", 1e-3, scheduler__params__warmup_max_lr="auto").settings == {"train.lr": 1e-3}


def test_adam_with_l2_is_not_adamw() -> None:
    assert outcome("optimizer.type", "Adam", optimizer__params__adam_w_mode=False).kind == "not there"


def test_fp32_is_chosen_only_if_no_half_precision_may_be() -> None:
    assert outcome("bf16.enabled", False, fp16__enabled=True).kind == "not needed"
    assert outcome("bf16.enabled", False, fp16__enabled="auto").kind == "not needed"


@pytest.mark.parametrize(("processes", "strategy", "replicate"), [(16, "hsdp", 2), (8, "fsdp", None)])
def test_shards_within_a_group_are_hsdp(processes: int, strategy: str, replicate: int | None) -> None:
    values = {"zero_optimization": {"stage": 3, "mics_shard_size": 8}}
    config = assemble("DeepSpeed", translate_deepspeed(FILE, values, TrainingSizes(processes)), 1, processes).config
    assert (config["parallel.strategy"], config.get("parallel.replicate")) == (strategy, replicate)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4},
            "2 × gradient_accumulation_steps: 4 × 8",
        ),
        ({"zero_optimization": {"stage": 4}}, "known are 0, 1, 2, 3"),
        ({"optimizer": {"params": {"betas": 0.9}}}, "two numbers"),
        ({"zero_optimization": {"offload_param": {"device": "tape"}}}, "none, cpu and nvme"),
        ({"gradient_clipping": None}, "gradient_clipping: null is not a valid value of this key"),
        ({"optimizer": {"params": {"max_grad_norm": "much"}}}, "optimizer.params.max_grad_norm: much is not a valid value"),
        ({"scheduler": {"params": {"warmup_num_steps": [1]}}}, r"warmup_num_steps: \[1\] is not a valid value"),
        ({"train_batch_size": math.inf}, "train_batch_size: inf is not a valid value"),
        ({"zero_optimization": {"stage": [3]}}, r"zero_optimization.stage: \[3\] is not a valid value"),
    ],
)
def test_a_file_that_deepspeed_would_refuse_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        translate_deepspeed(FILE, values, TrainingSizes(processes=8, sequence_length=10, steps=100))


def test_every_key_gets_exactly_one_line() -> None:
    values = {"zero_optimization": {"stage": 2, "mystery": 1}, "bf16": {"enabled": True}, "other": {"deep": {"er": [1]}}, "empty": {}}
    lines = translate_deepspeed(FILE, values, TrainingSizes())
    assert [line.key for line in lines] == [key for key, _ in flatten_keys(values)]
    assert [line.key for line in lines if line.outcome.kind == "unknown"] == ["zero_optimization.mystery", "other.deep.er", "empty"]


def estimate(strategy: Any, ranks: int, blocks: int = 40) -> tuple[int, int, int, Any]:
    """(parameters, parameters of a block, ranks, our estimate) of a model of equal blocks, in bf16."""
    block = Unit((ParameterOutline(2**12, 2**12, trained=True, at_rest=4, gathered=2, in_block=True),))
    outline = Outline(Unit(()), (block,) * blocks, blocks, 2**12)
    return outline.total, outline.total // blocks, ranks, estimate_memory(outline, Arrangement(strategy, ranks), NOTHING, 2)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_the_bytes_of_a_rank_are_those_of_deepspeeds_estimators(ranks: int) -> None:
    """DeepSpeed 0.19: stage 2 takes 2Ψ + 18Ψ/N bytes (`estimate_zero2_model_states_mem_needs`), stage 3 18Ψ/N and 4 bytes of the largest
    layer (`estimate_zero3_model_states_mem_needs`). Its 18 are fp32 weights, gradients and moments, 16, and 2 of 16-bit gradients or
    weights that are kept beside them; here those exist only while a unit is gathered or reduced."""
    total, layer, n, second = estimate(STRATEGIES[2], ranks)
    states = second.masters + second.gradients + second.optimizer
    assert states + second.gathered == pytest.approx(2 * total + 18 * total / n - 2 * total / n, rel=1e-3)
    total, layer, n, third = estimate(STRATEGIES[3], ranks)
    assert third.masters + third.gradients + third.optimizer == pytest.approx(18 * total / n - 2 * total / n, rel=1e-3)
    assert third.gathered == pytest.approx(4 * layer, rel=1e-3), "a layer in 16 bits, and the next one, prefetched"


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_the_bytes_of_the_first_stage_are_those_of_the_paper(ranks: int) -> None:
    """Rajbhandari et al. 2020: 4Ψ + 12Ψ/N. Here gradients are fp32, whole until they are reduced (2Ψ more) and then divided (4Ψ/N)."""
    total, _, n, first = estimate(STRATEGIES[1], ranks)
    states = first.masters + first.gradients + first.optimizer
    found = states + first.gathered + first.unreduced
    assert found == pytest.approx(4 * total + 12 * total / n + 2 * total + 4 * total / n, rel=0.01)
