"""A whole file: its kind, its counts, the config and the launch file; what contradicts itself is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from overtone.finetune.errors import UserError
from overtone.finetune.migration.key_rule_engine import KeyLine, sets
from overtone.finetune.migration.launch_file_translation import TrainingSizes, assemble, translate_file

AUTO = dict.fromkeys(("gradient_accumulation_steps", "gradient_clipping", "train_batch_size", "train_micro_batch_size_per_gpu"), "auto")
HALF = {"enabled": "auto", "auto_cast": False, "loss_scale": 0, "initial_scale_power": 32, "loss_scale_window": 1000, "hysteresis": 2}
OVERLAPPED = {"overlap_comm": True, "contiguous_gradients": True}
LIVE = {"sub_group_size": 0, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_max_live_parameters": 0}
CPU = {"device": "cpu", "pin_memory": True}
OF_AXOLOTL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "zero1": ({"zero_optimization": {"stage": 1, "overlap_comm": True}, "fp16": HALF}, {"parallel.strategy": "zero1"}),
    "zero1_torch_compile": (
        {"zero_optimization": {"stage": 1, "overlap_comm": True}, "compile": {"disable": False, "backend": "inductor"}},
        {"parallel.strategy": "zero1", "train.compile": True},
    ),
    "zero2": (
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, **OVERLAPPED}, "fp16": HALF},
        {"parallel.strategy": "zero2", "parallel.offload": True},
    ),
    "zero3": (
        {"zero_optimization": {"stage": 3, **OVERLAPPED, **LIVE, "stage3_gather_16bit_weights_on_model_save": True}, "fp16": HALF},
        {"parallel.strategy": "fsdp"},
    ),
    "zero3_bf16_cpuoffload_all": (
        {
            "zero_force_ds_cpu_optimizer": False,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 3, "offload_optimizer": CPU, "offload_param": CPU, **OVERLAPPED, "max_live_parameters": 0},
            "bf16": {"enabled": True},
        },
        {"parallel.strategy": "fsdp", "parallel.offload": True, "train.precision": "bf16"},
    ),
}
"""The settings of axolotl's files, and our config."""


def written(folder: Path, name: str, values: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(values) if name.endswith("json") else yaml.safe_dump(values), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", OF_AXOLOTL)
def test_the_files_of_axolotl_are_translated_whole(name: str, tmp_path: Path) -> None:
    values, config = OF_AXOLOTL[name]
    found = translate_file(written(tmp_path, "ds.json", {**values, **AUTO, "wall_clock_breakdown": False}), TrainingSizes())
    assert found.kind == "DeepSpeed" and found.config == config
    assert not found.list_lines("not there") and not found.list_lines("unknown")
    assert found.launch["distributed_type"] == "FSDP" and found.launch["num_processes"] == "gpu"
    section = found.launch["fsdp_config"]
    assert section["fsdp_offload_params"] == config.get("parallel.offload", False)
    assert section["fsdp_reshard_after_forward"] == (config["parallel.strategy"] == "fsdp")


def test_a_named_deepspeed_file_is_read_beside_the_launch_file(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    written(tmp_path / "a b", "ds.json", {"zero_optimization": {"stage": 2}, "train_batch_size": 16, "odd": 1})
    launch = {"distributed_type": "DEEPSPEED", "num_processes": 4, "deepspeed_config": {"deepspeed_config_file": "ds.json"}}
    found = translate_file(written(tmp_path / "a b", "launch.yaml", launch), TrainingSizes(sequence_length=100))
    assert found.config == {"parallel.strategy": "zero2", "train.global_batch_tokens": 1600}
    assert [line.key for line in found.list_lines("unknown")] == ["ds.json: odd"]
    assert found.count() == "3 mapped, 1 not needed, 0 not there, 1 unknown"


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("a.yaml", {"learning_rate": 1}, "neither a launch file of accelerate"),
        ("a.json", {"learning_rate": 1}, "no key of a DeepSpeed config"),
        ("a.json", [1], "object"),
        (
            "a.yaml",
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "gone.json"}},
            "gone.json, which does not",
        ),
        ("a.yaml", {"distributed_type": "FSDP", "num_processes": "eight"}, "num_processes: eight; a positive number"),
        ("a.json", {"zero_optimization": {"stage": 5}}, r"a\.json: .*ZeRO stage 5"),
        ("a.yaml", {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 5}}, r"a\.yaml: .*ZeRO stage 5"),
        ("a.json", {"gradient_clipping": "x", "zero_optimization": {"stage": 1}}, r"a\.json: gradient_clipping: x is not a valid value"),
        (
            "a.json",
            {"zero_optimization": {"stage": 1}, "gradient_clipping": 1.0, "optimizer": {"params": {"max_grad_norm": 0.5}}},
            "sets train.clip: 1.0, optimizer.params.max_grad_norm sets train.clip: 0.5",
        ),
    ],
)
def test_a_file_that_cannot_be_translated_is_one_error(name: str, values: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        translate_file(written(tmp_path, name, values), TrainingSizes())


def test_one_process_needs_no_section_for_sharding(tmp_path: Path) -> None:
    found = translate_file(written(tmp_path, "ds.json", {"zero_optimization": {"stage": 3}}), TrainingSizes(processes=1))
    assert found.launch["distributed_type"] == "NO" and "fsdp_config" not in found.launch


def test_trackers_are_joined_and_the_stronger_strategy_stays() -> None:
    pairs = [("log.trackers", ["wandb"]), ("log.trackers", ["tensorboard"]), ("parallel.strategy", "fsdp"), ("parallel.strategy", "ddp")]
    lines = [KeyLine(f"key{number}", None, sets(*pair)) for number, pair in enumerate(pairs)]
    assert assemble("DeepSpeed", lines, 1, 8).config == {"log.trackers": ["wandb", "tensorboard"], "parallel.strategy": "fsdp"}
