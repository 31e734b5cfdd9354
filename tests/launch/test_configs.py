"""The launch files start the processes that they promise, really, on this machine; and own nothing that the recipe owns."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed.run
import yaml
from accelerate.commands import launch

from tests.loopback import free_port
from tests.reliability import victims

ROOT = Path(__file__).parents[2]
CONFIGS = {path.stem: path for path in sorted((ROOT / "configs").glob("*.yaml"))}
PROCESSES = {
    "compute_environment", "distributed_type", "num_machines", "num_processes", "machine_rank", "main_process_ip", "main_process_port",
    "gpu_ids", "rdzv_backend", "same_network", "use_cpu", "mixed_precision", "fsdp_config",
}  # fmt: skip
PRESET = {"fsdp_version", "fsdp_reshard_after_forward", "fsdp_offload_params", "fsdp_cpu_ram_efficient_loading"}

ROLL_CALL = """
import json, os, sys
from pathlib import Path
import torch

rank, size, total = 0, 1, torch.ones(())
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.distributed.all_reduce(total)
    torch.distributed.destroy_process_group()
seen = {"size": size, "sum": int(total), "environment": dict(os.environ)}
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(seen))
"""


def test_all_launch_files_exist() -> None:
    assert set(CONFIGS) == {"cpu", "ddp", "fsdp2", "fsdp2_offload", "hsdp", "one_gpu", "two_nodes"}
    assert len(CONFIGS) == 7


def test_launch_files_for_one_strategy_name_its_config_keys() -> None:
    """The launch file owns processes and preset alone, so that its command has to say the rest."""
    first = {name: path.read_text(encoding="utf-8").splitlines()[0] for name, path in CONFIGS.items()}
    assert "--parallel.strategy hsdp --parallel.replicate 2" in first["hsdp"]
    assert "--parallel.offload true" in first["fsdp2_offload"]
    presets = {name: yaml.safe_load(path.read_text(encoding="utf-8")).get("fsdp_config", {}) for name, path in CONFIGS.items()}
    assert [name for name, preset in presets.items() if preset.get("fsdp_offload_params")] == ["fsdp2_offload"]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_launch_file_is_short_and_begins_with_its_command(name: str) -> None:
    lines = CONFIGS[name].read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 25
    assert lines[0].startswith("# accelerate launch ") and f"--config_file configs/{name}.yaml" in lines[0]
    assert "finetune/train.py --recipe voice_clone" in lines[0]
    assert lines[1].startswith(("# One process ", "# Two processes ")) and lines[1].endswith("."), "the studio shows it"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_launch_file_owns_processes_and_the_preset_only(name: str) -> None:
    values: dict[str, Any] = yaml.safe_load(CONFIGS[name].read_text(encoding="utf-8"))
    assert set(values) <= PROCESSES
    assert set(values.get("fsdp_config", {})) <= PRESET
    assert values["mixed_precision"] == "no"
    assert values["distributed_type"] != "MULTI_CPU", "accelerate would start one process, whatever num_processes says"


class Started:
    """What accelerate would start: processes on this machine, and their environment. `None` processes: one, without torchrun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
        self.processes: int | None = None
        self.environment: dict[str, str] = {}
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.distributed.run, "run", self._by_torchrun)
        monkeypatch.setattr(launch.subprocess, "Popen", self._alone)
        for key in ("CUDA_VISIBLE_DEVICES", *(key for key in os.environ if key.startswith(("ACCELERATE_", "FSDP_")))):
            monkeypatch.delenv(key, raising=False)

    def _by_torchrun(self, args: Any) -> None:
        config, _, _ = torch.distributed.run.config_from_args(args)
        self.processes, self.environment = config.nproc_per_node, dict(os.environ)

    def _alone(self, command: list[str], env: dict[str, str]) -> Any:
        self.environment = env
        return SimpleNamespace(wait=lambda: 0, returncode=0)


def started(monkeypatch: pytest.MonkeyPatch, name: str, gpus: int, *arguments: str) -> Started:
    """By accelerate's own parser and launcher, on a machine with so many visible GPUs."""
    found = Started(monkeypatch, gpus)
    script = ["finetune/train.py", "--recipe", "voice_clone"]
    launch.launch_command(launch.launch_command_parser().parse_args(["--config_file", str(CONFIGS[name]), *arguments, *script]))
    return found


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "fsdp2_offload"])
def test_a_process_is_started_for_each_visible_gpu(name: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = started(monkeypatch, name, gpus)
    assert found.processes == gpus
    assert found.environment.get("ACCELERATE_USE_FSDP", "false") == str(name != "ddp").lower()
    assert found.environment.get("FSDP_VERSION", "2") == "2"
    assert found.environment.get("FSDP_OFFLOAD_PARAMS", "false") == str(name == "fsdp2_offload").lower()
    assert "CUDA_VISIBLE_DEVICES" not in found.environment, "what is visible is the user's choice"


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "fsdp2_offload", "cpu"])
def test_num_processes_overrides_the_launch_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for processes in (1, 3):
        assert started(monkeypatch, name, 8, "--num_processes", str(processes)).processes == processes


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_launch_files_with_a_number_of_processes_keep_it(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = started(monkeypatch, "cpu", gpus)
    assert (cpu.processes, cpu.environment["CUDA_VISIBLE_DEVICES"]) == (2, "-1,-1")
    alone = started(monkeypatch, "one_gpu", gpus)
    assert alone.processes is None and "CUDA_VISIBLE_DEVICES" not in alone.environment, "CUDA_VISIBLE_DEVICES=3 would be overridden"
    for name in ("hsdp", "two_nodes"):
        assert started(monkeypatch, name, gpus, "--machine_rank", "1").processes == 8


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "fsdp2_offload"])
def test_without_a_gpu_a_launch_file_for_gpus_needs_num_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="Cuda is not available"):
        started(monkeypatch, name, 0)
    assert started(monkeypatch, name, 0, "--num_processes", "2").processes == 2


@pytest.mark.parametrize(
    ("name", "processes"),
    [
        pytest.param("cpu", 2, marks=[pytest.mark.slow, pytest.mark.ci]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("cpu", 1), ("ddp", 2), ("fsdp2", 1), ("fsdp2", 2))),
    ],
)
def test_as_many_processes_start_as_the_command_requests(name: str, processes: int, tmp_path: Path) -> None:
    _launch(tmp_path, ["--config_file", str(CONFIGS[name]), "--num_processes", str(processes)])
    for seen in _roll(tmp_path, processes):
        assert seen["environment"].get("ACCELERATE_USE_FSDP", "false") == ("true" if name == "fsdp2" else "false")
        assert seen["environment"]["ACCELERATE_MIXED_PRECISION"] == "no"
        assert seen["environment"].get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false") == "false"
        assert name != "cpu" or seen["environment"]["CUDA_VISIBLE_DEVICES"] == "-1,-1"


@pytest.mark.ci
@pytest.mark.slow
def test_two_launchers_form_one_process_group(tmp_path: Path) -> None:
    port = str(free_port())
    world = ["--config_file", str(CONFIGS["two_nodes"]), "--num_processes", "2"]
    meeting_point = ["--main_process_ip", "127.0.0.1", "--main_process_port", port]
    _launch(tmp_path, *([*world, *meeting_point, "--machine_rank", str(rank)] for rank in (0, 1)))
    assert {seen["environment"]["ACCELERATE_USE_FSDP"] for seen in _roll(tmp_path, 2)} == {"true"}


@pytest.mark.ci
@pytest.mark.slow
def test_one_gpu_starts_one_process(tmp_path: Path) -> None:
    _launch(tmp_path, ["--config_file", str(CONFIGS["one_gpu"])])
    (seen,) = _roll(tmp_path, 1)
    assert "WORLD_SIZE" not in seen["environment"]


def _launch(folder: Path, *launches: list[str]) -> None:
    """`accelerate launch` with each of these arguments, all at once, to their end. The launchers are forked, their ranks are not."""
    (folder / "roll_call.py").write_text(ROLL_CALL, encoding="utf-8")
    launchers = [victims.begin(_accelerate_launch, folder, number, arguments) for number, arguments in enumerate(launches)]
    assert victims.wait(launchers, 240) == [0] * len(launchers), victims.said(folder)


def _accelerate_launch(folder: Path, number: int, arguments: list[str]) -> None:
    victims.become(number, 1, 0, folder)
    launcher = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"}
    for key in [key for key in os.environ if key in launcher or key.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[key]
    sys.argv[1:] = [*arguments, str(folder / "roll_call.py"), str(folder)]
    launch.main()


def _roll(folder: Path, processes: int) -> list[dict[str, Any]]:
    """What each rank saw; asserts that there were exactly `processes` of them, in one world."""
    seen = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    assert [(each["size"], each["sum"]) for each in seen] == [(processes, processes)] * processes
    return seen
