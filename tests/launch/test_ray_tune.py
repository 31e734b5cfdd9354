"""Studies on a real Ray cluster: two trials at once, through the death of the driver and of a worker, and with trials that fail."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

from overtone.finetune.tuning.study_record import StudyRecord, read_record, read_results
from tests.launch import ray_nodes
from tests.launch.launching import ALONE, ROOT, byte_data, series
from tests.reliability.test_resume import logged, losses, weights

STEPS, EVERY = 80, 10
PATIENCE = 1500


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with ray_nodes.cluster(2) as nodes:
        yield nodes


@pytest.fixture
def training(tmp_path: Path) -> list[str]:
    arguments = byte_data(tmp_path)
    data = ["--data.val", tmp_path / "train.jsonl", "--options.dropout", "0.2", "--log.trackers", "[]", "--train.steps", STEPS]
    return [*map(str, [*arguments[1:], *data, "--checkpoint.every", EVERY, "--eval.every", EVERY, "--train.precision", "fp32"])]


def start(nodes: Cluster, folder: Path, space: str, training: list[str], *argv: object) -> subprocess.Popen[str]:
    (folder / "space.yaml").write_text(space)
    study = ["--space", folder / "space.yaml", "--storage", folder, "--run.dir", "study", "--ray-address", nodes.address, *argv]
    command = [sys.executable, "-m", "finetune", "ray-tune", *training, *map(str, study)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, output
    return output


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(process.communicate()[0])
        time.sleep(0.02)


def record(folder: Path) -> StudyRecord:
    found = read_record(folder / "study")
    assert found is not None
    return found


def span(run: Path) -> tuple[float, float]:
    times = [event["time"] for event in series(run)]
    return min(times), max(times)


@pytest.mark.ci
@pytest.mark.slow
def test_a_study_survives_its_driver_and_its_failing_trials(nodes: Cluster, training: list[str], tmp_path: Path) -> None:
    """Six combinations: with a short micro-batch no row fits, and with the largest rate the loss is not finite."""
    space = "train.micro_tokens: {grid: [256, 16]}\ntrain.lr: {grid: [0.003, 0.01, 1.0e+30]}\n"
    argv = ["--train.global_batch_tokens", "512", "--early-stopping", "false", "--max-concurrent", 2]
    study = tmp_path / "study"
    process = start(nodes, tmp_path, space, training, *argv)
    wait_until(lambda: min(logged(study / "trial-0000"), logged(study / "trial-0001")) > EVERY + 2, process)
    process.kill()
    process.communicate()
    assert "running" in [trial.status for trial in record(tmp_path).trials]

    output = ended(start(nodes, tmp_path, space, training, *argv))
    trials = record(tmp_path).trials
    assert [trial.status for trial in trials] == ["finished", "finished", "diverged", "refused", "refused", "refused"], output
    assert "positions do not fit train.micro_tokens: 16" in trials[4].message and "loss nan" in trials[2].message
    for trial in trials[:2]:
        run = study / trial.name
        resumed = series(run, "resumed")
        assert len(losses(run)) == STEPS and all(event["step"] >= EVERY for event in resumed)
        assert trial.launches == 1 + len(resumed) and trial.value == min(event["val/loss"] for event in series(run, "evaluation"))
    assert any(trial.launches == 2 for trial in trials)
    first, second = span(study / "trial-0000"), span(study / "trial-0001")
    assert first[0] < second[1] and second[0] < first[1], "two at once"
    prepared = list(study.glob("prepared/data-*/cache/train-*.index"))
    assert all(path.samefile(study / "trial-0000" / "cache" / path.name) for path in prepared) and len(prepared) == 1, "indexed once"
    assert output.count("indexing") == 0

    reference = tmp_path / "alone"
    values = ["--train.micro_tokens", "256", "--train.lr", "0.01", "--train.global_batch_tokens", "512", "--run.dir", str(reference)]
    subprocess.run([sys.executable, "-m", "finetune", "train", *training, *values], cwd=ROOT, env=ALONE, check=True, timeout=PATIENCE)
    assert losses(study / "trial-0001") == losses(reference) and weights(study / "trial-0001") == weights(reference), "an ordinary run"

    best = min(trials[:2], key=lambda trial: trial.value or 0)
    assert f"best: {best.name}, val/loss {best.value:.6g}" in output and (study / "report.html").is_file()
    (command,) = re.findall(r"next: (overtone export .*)", output)
    words = shlex.split(command.replace("exports/", f"{tmp_path}/exports/"))
    subprocess.run(words, cwd=ROOT, env=ALONE, check=True, timeout=PATIENCE)
    assert (tmp_path / "exports" / best.name / "config.json").is_file() and str(best.value_step) in words
    listed = subprocess.run(
        [sys.executable, "-m", "finetune", "ls", str(study)], cwd=ROOT, env=ALONE, capture_output=True, text=True, check=True
    )
    assert listed.stdout.count("finished") == 2 and "failed (not finite)" in listed.stdout


@pytest.mark.slow
def test_a_trial_that_falls_behind_is_stopped_and_one_whose_worker_dies_resumes(
    nodes: Cluster, training: list[str], tmp_path: Path
) -> None:
    study = tmp_path / "study"
    argv = ["--max-concurrent", 1, "--grace-steps", EVERY, "--reduction", 2]
    space = "train.lr: {grid: [0.01, 1.0e-8]}"
    process = start(nodes, tmp_path, space, training, *argv)
    wait_until(lambda: logged(study / "trial-0000") > EVERY + 2, process)
    victims = find_workers("train_trial")
    assert victims, [member.cmdline() for member in ray_nodes.family()]
    victims[0].kill()
    output = ended(process)
    good, bad = record(tmp_path).trials
    assert "trial-0000: its worker died: " in output and "starting it again" in output
    assert good.status == "finished" and good.launches == 2 and len(losses(study / "trial-0000")) == STEPS
    assert bad.status == "stopped early" and bad.step == EVERY and f"step {EVERY} is not among the best 1/2" in bad.message
    assert json.loads((study / "trial-0001" / "exit.json").read_text())["reason"].startswith("stopped by early stopping: ")
    results = list(read_results(study))
    again = ended(start(nodes, tmp_path, space, training, *argv))
    assert "0 of 2 trials to run" in again and list(read_results(study)) == results and record(tmp_path).trials == [good, bad]


# A `prepare` that kills its worker so often, by train.micro_tokens.
DEADLY = """

import dataclasses, os, signal

DEATHS = {64: 1, 128: 9}


def prepare(config):
    if config.train.lr == 0.5:
        raise RuntimeError("a bug for this value alone")
    marks = [config.run.dir.parent / f"died-{config.train.micro_tokens}-{number}" for number in range(DEATHS[config.train.micro_tokens])]
    for mark in marks:
        if config.run.dir.parent.name == "prepared" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


RECIPE = dataclasses.replace(RECIPE, prepare=prepare)
"""


@pytest.mark.ci
@pytest.mark.slow
def test_data_is_prepared_again_when_its_worker_dies(nodes: Cluster, training: list[str], tmp_path: Path) -> None:
    """Once for one group of trials, which then train; again and again for the other, whose trials fail. In both, the data cannot be
    prepared with the values of the first trial, which fails alone."""
    recipe = tmp_path / "deadly"
    shutil.copytree(ROOT / "tests" / "byte_model", recipe, ignore=shutil.ignore_patterns("__pycache__"))
    code = (recipe / "recipe.py").read_text()
    (recipe / "recipe.py").write_text(code + DEADLY)
    named = [str(recipe) if word == str(ROOT / "tests" / "byte_model") else word for word in training]
    space = "train.micro_tokens: {grid: [64, 128]}\ntrain.lr: {grid: [0.5, 0.003, 0.01]}\n"
    argv = ["--train.global_batch_tokens", "256", "--train.steps", "4", "--early-stopping", "false", "--max-failures", "2"]
    output = ended(start(nodes, tmp_path, space, named, *argv))
    trials = record(tmp_path).trials
    statuses = [trial.status for trial in trials]
    assert statuses == ["failed", "finished", "finished", "failed", "failed", "failed"], output
    assert {trials[number].message for number in (0, 3)} == {"preparing the data failed: RuntimeError: a bug for this value alone"}
    assert output.count("preparing the data: its worker died (1 of at most 3 times): ") == 2, "once for each group"
    assert output.count("; starting it again") == 3
    for trial in trials[4:]:
        assert trial.message.startswith("preparing the data: its worker died (3 of at most 3 times): ") and trial.launches == 0
    assert "the same command resumes what is not done" in output


def find_workers(name: str) -> list[psutil.Process]:
    found: list[Any] = ray_nodes.workers(name)
    return found
