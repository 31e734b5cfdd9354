"""A launch file that a plan writes is one that accelerate reads, and agrees with the config of the run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate.commands import launch
from accelerate.commands.config.config_args import load_config_from_file

from overtone.finetune.config import resolve
from overtone.finetune.distributed.sharding import choose_strategy
from overtone.finetune.hardware.gpu_specs import Cluster, make_cluster
from overtone.finetune.planning.activation_memory import Recomputing
from overtone.finetune.planning.launch_file import format_launch_command, format_launch_file, list_overrides
from overtone.finetune.planning.memory import Arrangement, Memory
from overtone.finetune.planning.parallelism_planner import LayoutEstimate, Seconds
from overtone.recipes.llm_sft.recipe import Options
from tests.launch.test_configs import PRESET, PROCESSES, ROLL_CALL, ROOT, Started

ONE, MACHINE, TWO = make_cluster("h100-80gb", 1, 1), make_cluster("h100-80gb", 2, 1), make_cluster("a100-80gb", 8, 2)
CASES = [
    (Arrangement("ddp", 1), ONE, "NO"),
    (Arrangement("ddp", 2), MACHINE, "MULTI_GPU"),
    (Arrangement("zero1", 2), MACHINE, "FSDP"),
    (Arrangement("fsdp", 2, offload=True), MACHINE, "FSDP"),
    (Arrangement("hsdp", 16, replicate=2), TWO, "FSDP"),
    (Arrangement("fsdp", 16, tensor=4), TWO, "FSDP"),
]


def verdict(arrangement: Arrangement, recomputing: Recomputing = "none") -> LayoutEstimate:
    nothing = Memory(*[0] * 12)
    return LayoutEstimate(arrangement, recomputing, nothing, 1.0, Seconds(1.0, 0.0), arrangement.ranks, 1.0, 1.0)


def written(folder: Path, arrangement: Arrangement, on: Cluster) -> Path:
    path = folder / "mine.yaml"
    path.write_text(format_launch_file(verdict(arrangement), on, Path("configs/mine.yaml"), ["--recipe", "llm_sft"]), encoding="utf-8")
    return path


@pytest.mark.parametrize(("arrangement", "on", "kind"), CASES, ids=[str(case[0]) for case in CASES])
def test_accelerate_reads_the_launch_file(arrangement: Arrangement, on: Cluster, kind: str, tmp_path: Path) -> None:
    path = written(tmp_path, arrangement, on)
    read = load_config_from_file(str(path))
    assert (read.num_machines, read.num_processes, str(getattr(read.distributed_type, "value", read.distributed_type))) == (
        on.nodes,
        on.ranks,
        kind,
    )
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(values) <= PROCESSES | {"main_process_port"} and set(values.get("fsdp_config", {})) <= PRESET
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# accelerate launch --config_file configs/mine.yaml") and "finetune/train.py --recipe llm_sft" in first


@pytest.mark.parametrize(("arrangement", "on", "kind"), CASES, ids=[str(case[0]) for case in CASES])
def test_the_command_sets_the_chosen_strategy(arrangement: Arrangement, on: Cluster, kind: str) -> None:
    said = list_overrides(verdict(arrangement, "selective"))
    overrides = [(key.removeprefix("--"), value) for key, value in zip(said[::2], said[1::2], strict=True)]
    config = resolve("llm_sft", Options, [], overrides)
    environ = {"ACCELERATE_USE_FSDP": str(kind == "FSDP").lower(), "FSDP_OFFLOAD_PARAMS": str(arrangement.offload).lower()}
    assert choose_strategy(config.parallel, config.train, environ) == arrangement.strategy
    assert (config.parallel.replicate, config.parallel.tensor) == (arrangement.replicate, arrangement.tensor)
    assert config.parallel.offload == arrangement.offload and config.train.activation_checkpointing == "selective"


@pytest.mark.parametrize(("arrangement", "on", "kind"), CASES, ids=[str(case[0]) for case in CASES])
def test_a_printed_command_starts_the_processes_of_the_plan(
    arrangement: Arrangement, on: Cluster, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pasted into a shell on a machine with a GPU more than the plan has, with values that a shell would split or expand."""
    arguments = ["--recipe", "llm_sft", "--model.lora", "{rank: 16}", "--data.train", "my data/$1.jsonl"]
    printed = shlex.split(format_launch_command(verdict(arrangement), on, None, arguments))
    if on.ranks == 1:
        assert printed == ["overtone", "train", *arguments]
        return
    assert printed[:2] == ["accelerate", "launch"]
    args = launch.launch_command_parser().parse_args(printed[2:])
    started = Started(monkeypatch, on.gpus + 1)
    launch.launch_command(args)
    assert started.processes == on.gpus
    assert started.environment.get("ACCELERATE_USE_FSDP", "false") == str(kind == "FSDP").lower()
    assert started.environment.get("FSDP_OFFLOAD_PARAMS", "false") == str(arrangement.offload).lower()
    assert Path(args.training_script).resolve() == ROOT / "finetune" / "train.py"
    assert args.training_script_args == [*arguments, *list_overrides(verdict(arrangement))]
    if on.nodes > 1:
        assert (args.machine_rank, args.main_process_ip, int(args.main_process_port)) == (0, "10.0.0.1", 29500)


@pytest.mark.slow
def test_accelerate_starts_the_processes_of_the_launch_file(tmp_path: Path) -> None:
    path = written(tmp_path, Arrangement("fsdp", 2), MACHINE)
    script = tmp_path / "roll_call.py"
    script.write_text(ROLL_CALL, encoding="utf-8")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(path), str(script), str(tmp_path)]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}, check=True, timeout=200)
    assert sorted(each.name for each in tmp_path.glob("rank*.json")) == ["rank0.json", "rank1.json"]
