"""`exit.json` is there and true whichever rank is killed; where none is left to write it, the next launch says what it finds."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.monitoring import killed_rank_diagnosis, rank_status_records
from overtone.finetune.monitoring.run_records import read_log
from tests.launch.launching import ALONE, ROOT, command
from tests.ledger import record
from tests.reliability import victims

LONG = ("--train.steps", 10**6, "--checkpoint.every", 50, "--checkpoint.keep", 2, "--log.trackers", "[]", "--parallel.strategy", "fsdp")


def killed(command: list[str], run: Path, ranks: tuple[int, ...]) -> tuple[str, dict[int, int]]:
    """Start a run, kill -9 these of its ranks after its first step, and wait; returns what it printed, and each rank's process."""
    with subprocess.Popen(command, cwd=ROOT, env=ALONE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launched:
        assert launched.stdout is not None
        first = []
        for line in launched.stdout:
            first.append(line)
            if line.startswith("step 1/"):
                break
        processes = {signs.rank: signs.process for signs in rank_status_records.read_all_statuses(run)}
        for rank in ranks:
            os.kill(processes[rank], signal.SIGKILL)
        rest = launched.communicate(timeout=240)[0]
    assert launched.returncode != 0
    return "".join(first) + rest, processes


def word(run: Path) -> dict[str, Any]:
    return json.loads((run / "exit.json").read_text())


@pytest.mark.slow
def test_the_next_launch_records_the_end_of_a_killed_single_process(tmp_path: Path) -> None:
    run, script = tmp_path / "run", [sys.executable, "finetune/train.py"]
    killed([*script, *victims.arguments(tmp_path, *LONG, "--run.dir", run)], run, (0,))
    assert not (run / "exit.json").exists()
    short = victims.arguments(tmp_path, *LONG, "--run.dir", run, "--run.deadline_minutes", "1e-6")
    done = subprocess.run([*script, *short], cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    account = f"the last launch in {run} left no exit.json: its process ended without a message "
    assert f"warning: {account}" in done.stdout
    (event,) = [event for event in read_log(run / "log.jsonl") if event["event"] == "killed"]
    assert event["account"].startswith(account) and "likely out of memory" in event["account"]
    assert word(run)["reason"].startswith("stopped by run.deadline_minutes")
    done = subprocess.run([*script, *short], cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=240, check=False)
    assert "left no exit.json" not in done.stdout, "that launch left its word"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_exit_json_names_the_killed_rank_under_accelerate(tmp_path: Path, rank: int) -> None:
    """The launcher holds the store, and ends the rank that is left within a tenth of a second."""
    run = tmp_path / "run"
    argv = command("cpu", 2, "finetune/train.py", *victims.arguments(tmp_path, *LONG, "--run.dir", run))
    said, processes = killed(argv, run, (rank,))
    left = word(run)
    assert (left["reason"], left["rank"]) == ("failed", rank), (left, said)
    who = f"rank {rank} (process {processes[rank]} on {platform.node()}) "
    assert left["signal"] in ("SIGKILL", None), "None: the launcher was faster in asking, which nobody can exclude"
    assert left["message"].startswith(who + ("was killed (SIGKILL) after step " if left["signal"] else "ended after step ")), left
    assert "out of memory" in left["message"] and "its peak of host memory was 0." in left["message"]
    assert left["step"] >= 1
    record("kill -9 of one rank of `accelerate launch`: exit.json names the rank, the signal and its peak", 1)


@pytest.mark.slow
def test_killing_all_ranks_and_the_launcher_leaves_no_exit_json(tmp_path: Path) -> None:
    run = tmp_path / "run"
    argv = command("cpu", 2, "finetune/train.py", *victims.arguments(tmp_path, *LONG, "--run.dir", run))
    with subprocess.Popen(argv, cwd=ROOT, env=ALONE, stdout=subprocess.PIPE, text=True) as launched:
        assert launched.stdout is not None
        for line in launched.stdout:
            if line.startswith("step 1/"):
                break
        for process in (launched.pid, *(signs.process for signs in rank_status_records.read_all_statuses(run))):
            os.kill(process, signal.SIGKILL)
    account = killed_rank_diagnosis.describe_killed_launch(run)
    assert not (run / "exit.json").exists() and account is not None
    assert "all of its 2 processes ended without a message" in account
