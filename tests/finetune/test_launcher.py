"""`overtone train --launch FILE` starts what accelerate would, and ends with one message."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from overtone.finetune import train
from overtone.finetune.config_sources import parse_arguments
from overtone.finetune.launcher import take_launch
from tests.finetune import tiny
from tests.launch.launching import ALONE
from tests.launch.test_configs import Started

ROOT = Path(__file__).parents[2]


def argv_in(folder: Path, *more: str) -> list[str]:
    config = tiny.config_in(folder)
    own = ["--run.dir", str(folder / "a run"), "--model.source", str(config.model.source), "--data.train", str(config.data.train)]
    return ["--recipe", str(tiny.FOLDER), *own, "--log.trackers", "[]", *more]


@pytest.mark.parametrize(
    ("given", "gpus", "processes"), [(["fsdp2"], 1, 1), (["fsdp2.yaml"], 8, 8), (["ddp", "--num_processes", "3"], 8, 3)]
)
def test_a_launch_starts_a_process_on_each_gpu(
    given: list[str], gpus: int, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch, gpus)
    assert train.main(argv_in(tmp_path, "--launch", *given, "--model.lora", "{rank: 4}")) == 0
    assert started.processes == processes
    assert started.environment.get("ACCELERATE_USE_FSDP", "false") == str(given[0].startswith("fsdp2")).lower()


def test_a_launch_finds_the_recipe_that_a_config_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Started(monkeypatch, 1)
    assert train.main(["--launch", "ddp"]) == 2
    assert "which recipe? give --recipe NAME" in capsys.readouterr().err and started.environment == {}
    (tmp_path / "mine.yaml").write_text("recipe: llm_sft\n")
    (tmp_path / "chats.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    data = ["--data.train", str(tmp_path / "chats.jsonl"), "--run.dir", str(tmp_path / "run")]
    argv = ["--config", str(tmp_path / "mine.yaml"), "--model.source", str(tiny.config_in(tmp_path).model.source), *data]
    assert train.main([*argv, "--launch", "ddp"]) == 0
    assert started.processes == 1


def test_the_ranks_receive_the_arguments_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Started(monkeypatch, 2)
    received: list[Any] = []
    monkeypatch.setattr(torch.distributed.run, "run", received.append)
    argv = argv_in(tmp_path, "--model.lora", "{rank: 4}", "--launch", str(ROOT / "configs" / "fsdp2.yaml"))
    assert train.main(argv) == 0
    (args,) = received
    assert Path(args.training_script).resolve() == ROOT / "finetune" / "train.py"
    assert args.training_script_args == argv[:-2]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--launch", "fsdp3"], "--launch fsdp3: no such file, and no launch file of that name; known are cpu, ddp, fsdp2, "),
        (["--num_processes", "2"], "--num_processes needs --launch FILE, as in --launch fsdp2 --num_processes 4"),
        (["--launch", "one_gpu", "--num_processes", "2"], "one_gpu.yaml describes one process; for several give --launch ddp"),
        (["--launch", "cpu", "--num_processes", "two"], "--num_processes two: expected a number, as in --num_processes 4"),
        (["--launch", "cpu", "--num_processes", "-1"], "--num_processes -1: expected a number"),
        (["--launch", "cpu", "--num_processes", "0"], "--num_processes 0: a training needs a process; give 1 or more"),
        (["--launch", "fsdp2"], "fsdp2.yaml: Cuda is not available; without GPUs give --num_processes N"),
        (["--launch", "cpu", "--train.lrr", "1"], "--train.lrr: unknown key train.lrr; did you mean train.lr?"),
    ],
)
def test_a_mistake_is_one_error_before_any_process_starts(
    given: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch, 0)
    assert train.main(argv_in(tmp_path, *given)) == 2
    assert words in capsys.readouterr().err and started.environment == {}


def test_a_launch_file_for_deepspeed_names_the_translation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "zero3.yaml"
    file.write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n", encoding="utf-8")
    started = Started(monkeypatch, 0)
    assert train.main(argv_in(tmp_path, "--launch", str(file))) == 2
    assert f"overtone translate {file} --to FOLDER` writes a launch file" in capsys.readouterr().err and started.environment == {}


def test_a_rank_that_was_started_for_deepspeed_ends_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert train.main(argv_in(tmp_path)) == 2
    output = capsys.readouterr()
    assert "the launch file uses DeepSpeed" in output.err and "loading torch" not in output.out


def test_a_launch_file_of_one_process_trains_in_this_one() -> None:
    given = take_launch(parse_arguments(["--launch", "one_gpu", "--train.lr", "1"]))
    assert given is not None and not given.starts_processes
    assert take_launch(parse_arguments(["--train.lr", "1"])) is None
    for more in (["--launch", "fsdp2"], ["--launch", "cpu"], ["--launch", "one_gpu", "--main_process_port", "2"]):
        several = take_launch(parse_arguments(more))
        assert several is not None and several.starts_processes


def test_a_launch_file_for_another_gpu_or_the_cpu_needs_the_launcher(tmp_path: Path) -> None:
    for line in ("gpu_ids: '1'", "use_cpu: true"):
        (tmp_path / "own.yaml").write_text(f"distributed_type: 'NO'\n{line}\n")
        wanted = take_launch(parse_arguments(["--launch", str(tmp_path / "own.yaml")]))
        assert wanted is not None and wanted.starts_processes, line


def test_a_rank_starts_no_further_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert train.main(argv_in(tmp_path, "--launch", "fsdp2")) == 2
    assert "this process is a rank of a launcher already; remove the flag, or the other launcher" in capsys.readouterr().err


def failed_with(exitcode: int) -> ChildFailedError:
    return ChildFailedError("train", {1: ProcessFailure(local_rank=1, pid=1, exitcode=exitcode, error_file="")})


@pytest.mark.parametrize(
    ("end", "reason", "code", "words"),
    [
        (SignalException("ours", signal.SIGINT), "stopped by SIGINT on rank 0", 0, ""),
        (SignalException("ours", signal.SIGTERM), "failed", 143, ""),
        (SignalException("ours", signal.SIGINT), None, 130, ""),
        (failed_with(2), "failed", 2, ""),
        (failed_with(1), "failed", 2, "rank 1 ended with exit code 1; the reason is above, or in "),
        (failed_with(-9), None, 2, "rank 1 ended with SIGKILL; the reason is above, or in "),
        (subprocess.CalledProcessError(2, "train"), "failed", 2, ""),
        (subprocess.CalledProcessError(1, "train"), "failed", 2, "rank 0 ended with exit code 1; the reason is above, or in "),
    ],
    ids=["stopped", "ended", "interrupted", "error", "bug", "killed", "error of one process", "bug of one process"],
)
def test_the_end_of_the_ranks_is_one_message(
    end: Exception,
    reason: str | None,
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: Any) -> None:
        if reason is not None:
            (tmp_path / "a run").mkdir()
            (tmp_path / "a run" / "exit.json").write_text(json.dumps({"reason": reason}))
        raise end

    Started(monkeypatch, 2)
    monkeypatch.setattr(torch.distributed.run, "run", run)
    assert train.main(argv_in(tmp_path, "--launch", "fsdp2")) == code
    err = capsys.readouterr().err
    assert (err == "") == (words == "") and words in err and len(err.splitlines()) <= 1


def test_the_record_of_an_earlier_launch_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the ranks of a resumed run still import torch."""
    (tmp_path / "a run").mkdir()
    (tmp_path / "a run" / "exit.json").write_text(json.dumps({"reason": "stopped by SIGINT on rank 0"}))

    def run(_: Any) -> None:
        raise SignalException("ours", signal.SIGINT)

    Started(monkeypatch, 2)
    monkeypatch.setattr(torch.distributed.run, "run", run)
    assert train.main(argv_in(tmp_path, "--launch", "fsdp2")) == 130


@pytest.mark.slow
def test_ctrl_c_prints_how_to_resume_and_no_traceback(tmp_path: Path) -> None:
    """A terminal sends SIGINT to the launcher and, where they are in its group, to the ranks."""
    argv = [sys.executable, "-m", "finetune", "train", "--launch", "cpu", *argv_in(tmp_path, "--train.steps", "1000000")]
    with subprocess.Popen(
        argv, cwd=ROOT, env=ALONE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as launched:
        assert launched.stdout is not None
        for line in launched.stdout:
            if line.startswith("step 1/"):
                break
        os.killpg(launched.pid, signal.SIGINT)
        rest = launched.communicate(timeout=240)[0]
    assert launched.returncode == 0, rest
    assert "Traceback" not in rest and "torch/distributed" not in rest, rest
    reason, command, export = rest.splitlines()[-3:]
    assert re.match(r"stopped by SIGINT on rank [01] at step ", reason) and reason.endswith(" with this command:")
    assert command.strip().endswith("--log.trackers '[]' --train.steps 1000000") and " train --launch cpu --recipe " in command
    assert export.startswith("to use the model of step ")
