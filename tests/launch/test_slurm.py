"""The batch script for SLURM, played on this machine: a stand-in for `srun` starts both nodes here, and all else is real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from overtone.finetune.monitoring.run_records import read_log
from tests.launch.launching import ALONE, ROOT, byte_data

SCRIPT = ROOT / "configs" / "cluster" / "slurm.sh"
SRUN = """#!/bin/bash
# Starts the command once per node, as `srun` does with one task on each.
while [ "${1#--}" != "$1" ]; do shift; done
for ((node = 0; node < SLURM_NNODES; node++)); do SLURM_PROCID=$node "$@" & done
code=0
for job in $(jobs -p); do wait "$job" || code=$?; done
exit $code
"""
SCONTROL = """#!/bin/bash
case $1 in
    show) printf '%s\\n' 127.0.0.1 127.0.0.1 ;;
    requeue) echo "requeued $2" >>"$SLURM_SUBMIT_DIR/requeued" ;;
esac
"""
ACCELERATE = """#!/bin/bash
printf '%s\\0' "$@" >"$SLURM_SUBMIT_DIR/node-$SLURM_PROCID"
"""


def put(folder: Path, **programs: str) -> Path:
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def environment(home: Path, programs: Path, job: int, gpus: int) -> dict[str, str]:
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    known = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": 2, "SLURM_GPUS_ON_NODE": gpus}
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "SLURM_SUBMIT_DIR": str(home), **{name: str(value) for name, value in known.items()}}
    return {**ALONE, **own}


def submit(home: Path, env: Mapping[str, str], *arguments: object) -> subprocess.Popen[str]:
    command = ["bash", str(SCRIPT), *map(str, arguments)]
    with (home / "slurm.log").open("a") as log:
        return subprocess.Popen(command, cwd=home, env=dict(env), stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def test_each_node_gets_its_launcher(tmp_path: Path) -> None:
    env = environment(tmp_path, put(tmp_path / "bin", srun=SRUN, scontrol=SCONTROL, accelerate=ACCELERATE), 4321, 8)
    env |= {"LAUNCH_FILE": "a folder/own.yaml", "RUN_DIR": "runs/my run"}
    (tmp_path / "runs" / "my run").mkdir(parents=True)
    (tmp_path / "runs" / "my run" / "STOP").touch()
    process = submit(tmp_path, env, "--recipe", "voice_clone", "--model.lora", "{rank: 16}")
    assert process.wait(60) == 0, (tmp_path / "slurm.log").read_text()
    for node in (0, 1):
        words = (tmp_path / f"node-{node}").read_text().split("\0")[:-1]
        assert words == [
            *("launch", "--config_file", "a folder/own.yaml", "--num_machines", "2", "--num_processes", "16", "--machine_rank", str(node)),
            *("--main_process_ip", "127.0.0.1", "--main_process_port", "24321", "-m", "overtone.finetune.train"),
            *("--recipe", "voice_clone", "--model.lora", "{rank: 16}", "--run.dir", "runs/my run"),
        ]
    assert not (tmp_path / "runs" / "my run" / "STOP").exists(), "or the run would stop after its first step"
    assert not (tmp_path / "requeued").exists()


def test_the_header_wants_what_the_script_relies_on() -> None:
    wanted = {line.removeprefix("#SBATCH ") for line in SCRIPT.read_text(encoding="utf-8").splitlines() if line.startswith("#SBATCH ")}
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--requeue", "--signal=B:USR1@300"} <= wanted


def test_a_failure_is_the_exit_code_of_the_job(tmp_path: Path) -> None:
    env = environment(tmp_path, put(tmp_path / "bin", srun=SRUN, scontrol=SCONTROL, accelerate="#!/bin/bash\nexit 3\n"), 1, 1)
    assert submit(tmp_path, env, "--recipe", "voice_clone").wait(60) == 3
    assert not (tmp_path / "requeued").exists()


TRAINING = """#!/bin/bash
trap 'echo "{\\"reason\\": \\"stopped by SIGTERM on rank 0\\"}" >"$RUN_DIR/exit.json"; exit 143' TERM
mkdir -p "$RUN_DIR" && touch "$SLURM_SUBMIT_DIR/started-$SLURM_PROCID"
until [ -e "$RUN_DIR/STOP" ]; do sleep 0.02; done
echo "{\\"reason\\": \\"stopped by the file STOP on rank 0\\"}" >"$RUN_DIR/exit.json"
"""


def start_training(home: Path) -> subprocess.Popen[str]:
    """The script with stand-ins for two launchers, which wait for the STOP file, once both have started."""
    env = environment(home, put(home / "bin", srun=SRUN, scontrol=SCONTROL, accelerate=TRAINING), 7, 1) | {"RUN_DIR": str(home / "run")}
    job, deadline = submit(home, env, "--recipe", "voice_clone"), time.monotonic() + 60
    while not all((home / f"started-{node}").exists() for node in (0, 1)):
        assert job.poll() is None and time.monotonic() < deadline, (home / "slurm.log").read_text()
        time.sleep(0.01)
    return job


def test_the_signal_before_the_time_limit_stops_the_run_and_requeues_the_job(tmp_path: Path) -> None:
    job = start_training(tmp_path)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(60) == 0, (tmp_path / "slurm.log").read_text()
    assert (tmp_path / "requeued").read_text() == "requeued 7\n"


def test_a_cancelled_job_is_not_requeued(tmp_path: Path) -> None:
    """`scancel` sends SIGTERM to all processes of the job."""
    job = start_training(tmp_path)
    os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(60) != 0 and not (tmp_path / "requeued").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_signal_before_the_time_limit_saves_and_requeues_and_the_job_resumes(tmp_path: Path) -> None:
    """SLURM's own part, to deliver SIGUSR1 to the batch shell and to start a requeued job again, is done by the test."""
    programs = put(tmp_path / "bin", srun=SRUN, scontrol=SCONTROL)
    env = environment(tmp_path, programs, os.getpid(), 1) | {"RUN_DIR": str(tmp_path / "run")}  # another port for each test process
    _, *data = byte_data(tmp_path)
    arguments = [*data, "--log.trackers", "[]", "--train.steps", 300, "--checkpoint.every", 1000]
    job = submit(tmp_path, env, *arguments)
    log, deadline = tmp_path / "run" / "log.jsonl", time.monotonic() + 400
    while not (log.exists() and any(event["event"] == "step" for event in read_log(log))):
        assert job.poll() is None and time.monotonic() < deadline, (tmp_path / "slurm.log").read_text()
        time.sleep(0.02)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(400) == 0, (tmp_path / "slurm.log").read_text()
    record = json.loads((tmp_path / "run" / "exit.json").read_text())
    assert record["reason"].startswith("stopped by the file") and record["last_commit"] and 0 < record["step"] < 300
    assert len((tmp_path / "requeued").read_text().splitlines()) == 1
    assert submit(tmp_path, env, *arguments).wait(400) == 0, (tmp_path / "slurm.log").read_text()
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["reason"] == "finished"
    starts = [event for event in read_log(log) if event["event"] in ("started", "resumed")]
    assert [(event["event"], event["world"]) for event in starts] == [("started", 2), ("resumed", 2)]
    assert starts[1]["step"] == record["step"]
    assert len((tmp_path / "requeued").read_text().splitlines()) == 1
