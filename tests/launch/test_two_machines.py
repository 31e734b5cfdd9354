"""Two machines without Ray: two launchers on this one, two ranks each, that meet as the machines of docs/several_machines.md do."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import loopback
from tests.launch.launching import ALONE, ROOT, byte_data, command, series
from tests.reliability.test_resume import logged, losses, weights

STEPS, EVERY, RANKS = 60, 5, 4
GONE_SECONDS = 30.0
PATIENCE = 900
"""Seconds: the machine may have other work."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    more = ["--options.dropout", "0.2", "--log.trackers", "[]", "--train.steps", STEPS, "--checkpoint.every", EVERY]
    return [*byte_data(tmp_path_factory.mktemp("bytes")), *more]


@pytest.fixture(scope="module")
def whole(data: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of four ranks that one launcher starts."""
    run = tmp_path_factory.mktemp("whole") / "run"
    done = subprocess.run(
        command("fsdp2", RANKS, *data, "--run.dir", run), cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return run


@contextlib.contextmanager
def machines(run: Path, data: list[object]) -> Iterator[list[subprocess.Popen[str]]]:
    """The launchers of both machines; what each says is in a file beside the run. Nothing of them is left afterwards."""
    meeting = ["--main_process_ip", "127.0.0.1", "--main_process_port", loopback.free_port()]
    started = []
    for rank in (0, 1):
        whole = command("two_nodes", RANKS, "--machine_rank", rank, *meeting, *data, "--run.dir", run)
        log = said_by(run, rank).open("w")
        started.append(subprocess.Popen(whole, cwd=ROOT, env=ALONE, stdout=log, stderr=subprocess.STDOUT, text=True))
        log.close()
    try:
        yield started
    finally:
        for launcher in started:
            strike(family(launcher), signal.SIGKILL)
            launcher.wait()


def said_by(run: Path, machine: int) -> Path:
    return run.parent / f"machine-{machine}.log"


def family(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    """A launcher and its ranks: all that runs on its machine."""
    with contextlib.suppress(psutil.NoSuchProcess):
        own = psutil.Process(launcher.pid)
        return [*own.children(recursive=True), own]
    return []


def strike(processes: list[psutil.Process], blow: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(blow)


def finish(run: Path, data: list[object]) -> None:
    with machines(run, data) as both:
        codes = [launcher.wait(PATIENCE) for launcher in both]
    assert codes == [0, 0], said_by(run, 0).read_text() + said_by(run, 1).read_text()


def gone(processes: list[psutil.Process]) -> bool:
    return all(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in processes)


def lose(machine: int, blow: signal.Signals, run: Path, data: list[object]) -> float:
    """Train some steps more than before, let a machine fall silent, and return for how many seconds the other one goes on."""
    before = logged(run)
    with machines(run, data) as both:
        deadline = time.monotonic() + PATIENCE
        while logged(run) < before + EVERY + 2:
            assert [launcher.poll() for launcher in both] == [None, None] and time.monotonic() < deadline, said_by(run, 0).read_text()
            time.sleep(0.02)
        lost, left = family(both[machine]), family(both[1 - machine])
        assert len(lost) >= 3 and len(left) >= 3, "a launcher and two ranks each"
        struck = time.monotonic()
        strike(lost, blow)
        while not gone(left) and time.monotonic() < struck + 4 * GONE_SECONDS:
            time.sleep(0.05)
        return time.monotonic() - struck


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
def test_two_machines_of_two_ranks_train_the_same_run_as_one_of_four(data: list[object], whole: Path, tmp_path: Path) -> None:
    finish(tmp_path / "run", data)
    assert [event["world"] for event in series(tmp_path / "run", "started")] == [RANKS]
    assert losses(tmp_path / "run") == losses(whole) and len(losses(whole)) == STEPS
    assert weights(tmp_path / "run") == weights(whole) and len(weights(whole)) == RANKS


BLOWS = {
    "its processes are killed": (1, signal.SIGKILL, " after step "),
    "it stands still, and its connections stay open": (1, signal.SIGSTOP, "rank 2 is missing: no heartbeat for 7 s"),
    "the first machine, which holds the store, stands still": (0, signal.SIGSTOP, "the launcher's store does not respond"),
}


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
def test_a_silent_machine_ends_the_other_and_the_same_commands_resume(data: list[object], whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name, (machine, blow, why) in BLOWS.items():
        took = lose(machine, blow, run, data)
        message = json.loads((run / "exit.json").read_text())
        assert took < GONE_SECONDS, (name, took, said_by(run, 1 - machine).read_text())
        assert message["reason"] == "failed" and why in message["message"], (name, message)
    finish(run, data)
    assert len(series(run, "resumed")) == len(BLOWS)
    assert losses(run) == losses(whole) and weights(run) == weights(whole)
