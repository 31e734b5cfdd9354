"""After kill -9 at any moment a run resumes as if it had not been killed: bit for bit on as many ranks, within rounding on another number.

Here the launcher dies with its ranks; runs that are not killed are forked ranks of the same command line, without a launcher.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from overtone.finetune.checkpointing.checkpoint import find_newest_valid, list_checkpoints, read_state
from overtone.finetune.storage import files
from tests.launch.launching import ALONE, ROOT, byte_data, command, launch, series
from tests.ledger import record
from tests.reliability import victims

STEPS, EVERY = 80, 10
RUN = ["--train.steps", STEPS, "--checkpoint.every", EVERY, "--eval.every", 20, "--options.dropout", "0.2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    folder = tmp_path_factory.mktemp("bytes")
    return [*byte_data(folder), "--data.val", folder / "train.jsonl", *RUN]


@pytest.fixture(scope="module")
def uninterrupted(data: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    train(2, data, run)
    return run


def train(ranks: int, data: list[object], run: Path) -> None:
    """To the end, on forked ranks."""
    victims.finish(run.parent / f"witness-{run.name}", ranks, forked(ranks, data, run))


def forked(ranks: int, data: list[object], run: Path) -> list[str]:
    """The arguments of `finetune/train.py`, with the strategy that the launch file of so many ranks sets."""
    return [str(word) for word in (*data[1:], "--parallel.strategy", "fsdp" if ranks > 1 else "ddp", "--run.dir", run)]


def kill_at(step: int, run: Path, world: int, arguments: list[object]) -> int:
    """Start a run and kill launcher and workers with SIGKILL once `step` is logged; returns the last step that was logged."""
    process = subprocess.Popen(
        command("fsdp2", world, *arguments, "--run.dir", run),
        cwd=ROOT, env=ALONE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while logged(run) < step:
        assert process.poll() is None and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(0.01)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in reversed(family):
        member.kill()
    psutil.wait_procs(family, timeout=30)
    process.wait()
    return logged(run)


def logged(run: Path) -> int:
    steps = series(run) if (run / "log.jsonl").is_file() else []
    return steps[-1]["step"] if steps else 0


def losses(run: Path) -> list[tuple[int, float, float]]:
    return [(event["step"], event["loss"], event["grad_norm"]) for event in series(run)]


def validation(run: Path) -> list[tuple[int, float]]:
    return [(event["step"], event["val/loss"]) for event in series(run, "evaluation")]


def weights(run: Path) -> dict[str, Any]:
    """Digest of every rank's file of the last checkpoint."""
    entries = json.loads((list_checkpoints(run / "checkpoints")[0] / "manifest.json").read_text())["files"]
    return {name: entry["digest"] for name, entry in entries.items() if name.endswith(".safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.ci), 3])  # test_kill.py has the quick kills
def test_killed_and_resumed_is_bit_identical(data: list[object], uninterrupted: Path, tmp_path: Path, kills: int) -> None:
    chance, run = random.Random(time.time_ns()), tmp_path / "run"
    reached = kill_at(chance.randint(EVERY + 2, 25), run, 2, data)
    committed, _ = find_newest_valid(run)
    assert committed is not None and 0 < read_state(committed)["step"] <= reached < STEPS, "the kill did not land inside the run"
    start = read_state(committed)["step"]
    shutil.copytree(run, tmp_path / "elsewhere")
    for _ in range(kills - 1):
        before, reached = reached, kill_at(chance.randint(reached + 2, reached + 10), run, 2, data)
        assert before < reached < STEPS
    if kills == 1:
        train(2, data, run)
    else:
        launch("fsdp2", 2, *data, "--run.dir", run)
    assert losses(run) == losses(uninterrupted)
    assert validation(run) == validation(uninterrupted)
    assert weights(run) == weights(uninterrupted) and len(weights(run)) == 2
    assert [event["event"] for event in map(json.loads, (run / "log.jsonl").read_text().splitlines())].count("resumed") == kills
    assert not [path for path in (run / "checkpoints").iterdir() if not path.name.startswith("step-")], "temporaries were left behind"
    record("kill -9 of `accelerate launch` and its 2 processes: same losses and weights, bit by bit", kills)

    other = tmp_path / "elsewhere"
    train(1, data, other)
    assert series(other, "resumed")[0]["world"] == 1
    for found, expected in zip(losses(other)[start:], losses(uninterrupted)[start:], strict=True):
        assert found[0] == expected[0]
        assert found[1] == pytest.approx(expected[1], rel=1e-4), "rounding grows over many AdamW steps, but not to this"
    for found, expected in zip(losses(other)[start : start + 20], losses(uninterrupted)[start : start + 20], strict=True):
        assert found[1] == pytest.approx(expected[1], rel=1e-6)


@pytest.mark.slow
def test_a_signal_saves_and_stops_and_the_run_resumes(data: list[object], uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(
        command("fsdp2", 2, *data, "--run.dir", run), cwd=ROOT, env=ALONE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while logged(run) < 15:
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    output, _ = process.communicate(timeout=240)
    word = json.loads((run / "exit.json").read_text())
    assert word["reason"].startswith("stopped by"), output
    assert word["step"] >= 15 and word["last_commit"] == f"step-{word['step']:08d}"
    launch("fsdp2", 2, *data, "--run.dir", run)
    assert losses(run) == losses(uninterrupted)


def test_another_run_in_the_same_folder_is_refused(data: list[object], tmp_path: Path) -> None:
    train(1, [*data, "--train.steps", 2], tmp_path / "run")
    before = weights(tmp_path / "run")
    said = refused([*forked(1, data, tmp_path / "run"), "--run.seed", "7"], tmp_path / "witness")
    assert "belongs to a run with other data, base or order" in said and "choose another --run.dir" in said
    assert weights(tmp_path / "run") == before


def refused(arguments: list[str], witness: Path) -> str:
    """What a run that ends with a user's error prints."""
    assert victims.wait(victims.start(witness, 1, arguments)) == [2]
    return victims.said(witness)


def test_a_second_run_in_a_locked_folder_is_refused(data: list[object], tmp_path: Path) -> None:
    lock = files.lock_folder(tmp_path / "run")
    said = refused(forked(1, data, tmp_path / "run"), tmp_path / "witness")
    assert f"is in use by a running process (process {os.getpid()} on " in said
    os.close(lock)
