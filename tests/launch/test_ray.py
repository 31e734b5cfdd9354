"""Training on Ray's workers is the training of `accelerate launch`: bit by bit, through the death of a worker and the loss of a machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray
from ray.cluster_utils import Cluster

from overtone.data_prep.cli import voice
from overtone.finetune import ray_train
from overtone.finetune.checkpointing.checkpoint import find_newest_valid
from overtone.finetune.errors import UserError
from overtone.finetune.ray_cluster import cluster_checks, cluster_connection
from overtone.finetune.storage import folder_handles
from tests.launch import ray_nodes
from tests.launch.launching import ALONE, ROOT, byte_data, command, series
from tests.recipes.image_classification import tiny_images
from tests.reliability.test_resume import logged, losses, weights

STEPS, EVERY = 120, 10
PATIENCE = 1500
"""Seconds: the machine may have other work, and pytest has a limit of its own."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with ray_nodes.cluster(2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    arguments = byte_data(tmp_path_factory.mktemp("bytes"))[1:]
    return [*arguments, "--options.dropout", "0.2", "--parallel.strategy", "fsdp", "--log.trackers", "[]"]


@pytest.fixture(scope="module")
def long(data: list[object]) -> list[object]:
    return [*data, "--train.steps", STEPS, "--checkpoint.every", EVERY]


@pytest.fixture(scope="module")
def uninterrupted(long: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two processes that `accelerate launch` starts."""
    run = tmp_path_factory.mktemp("whole") / "run"
    launch(*long, "--run.dir", run)
    return run


def launch(*arguments: object) -> None:
    """Two processes without Ray."""
    whole = command("fsdp2", 2, "finetune/train.py", *arguments)
    done = subprocess.run(whole, cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def start(nodes: Cluster, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(ray_nodes.ray_train(nodes, *arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, output
    return output


def reach(step: int, run: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while logged(run) < step:
        assert process.poll() is None and time.monotonic() < deadline, "the run ended before anything could befall it"
        time.sleep(0.01)


@pytest.mark.ci
@pytest.mark.slow
def test_a_short_run_is_whole_and_reported(nodes: Cluster, data: list[object], tmp_path: Path) -> None:
    """One worker, for the time that it takes."""
    output = ended(start(nodes, *data, "--train.steps", 3, "--run.dir", "run", "--storage", tmp_path, "--num-workers", 1))
    assert "finished at step 3; next: overtone export" in output
    assert [step for step, *_ in losses(tmp_path / "run")] == [1, 2, 3]
    assert find_newest_valid(tmp_path / "run") == (tmp_path / "run" / "checkpoints" / "step-00000003", [])
    (launched,) = (tmp_path / "run" / "ray").iterdir()
    (reported,) = json.loads((launched / "checkpoint_manager_snapshot.json").read_text())["checkpoint_results"]
    assert reported["checkpoint_dir_name"] == "step-00000003"
    assert reported["metrics"]["loss"] == losses(tmp_path / "run")[-1][1], "Ray has the numbers of the log"
    assert json.loads((launched / "step-00000003" / "checkpoint.json").read_text()) == {"folder": "step-00000003", "step": 3}


@pytest.mark.slow
def test_two_workers_train_what_two_processes_train(nodes: Cluster, long: list[object], uninterrupted: Path, tmp_path: Path) -> None:
    ended(start(nodes, *long, "--run.dir", tmp_path / "run", "--num-workers", 2))
    assert losses(tmp_path / "run") == losses(uninterrupted) and len(losses(tmp_path / "run")) == STEPS
    assert weights(tmp_path / "run") == weights(uninterrupted) and len(weights(tmp_path / "run")) == 2


@pytest.mark.slow
def test_two_workers_train_an_image_classifier_as_two_processes_do(nodes: Cluster, tmp_path: Path) -> None:
    """A ViT, sharded over both, whose crops and whose new head depend on the seed alone."""
    tiny_images.make_config(tmp_path)
    data = {"model.source": "base", "data.train": "train.jsonl", "data.val": "val.jsonl"}
    places = [word for key, name in data.items() for word in (f"--{key}", tmp_path / name)]
    sizes = ["--train.steps", 4, "--train.global_batch_tokens", 12, "--train.micro_tokens", 3, "--eval.every", 2, "--checkpoint.every", 4]
    rest = ["--train.precision", "fp32", "--train.lr", "2e-3", "--parallel.strategy", "fsdp", "--log.trackers", "[]"]
    words = ["--recipe", "image_classification", *places, *sizes, *rest]
    launch(*words, "--run.dir", tmp_path / "launched")
    output = ended(start(nodes, *words, "--run.dir", "run", "--storage", tmp_path, "--num-workers", 2))
    assert "finished at step 4; next: overtone export" in output
    assert losses(tmp_path / "run") == losses(tmp_path / "launched") and len(losses(tmp_path / "run")) == 4
    assert weights(tmp_path / "run") == weights(tmp_path / "launched") and len(weights(tmp_path / "run")) == 2
    measured = [[event["val/accuracy"] for event in series(tmp_path / run, "evaluation")] for run in ("run", "launched")]
    assert measured[0] == measured[1] and len(measured[0]) == 3


@pytest.mark.ci
@pytest.mark.slow
def test_requests_beyond_the_cluster_are_refused_before_anything_is_loaded(
    nodes: Cluster, data: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with cluster_connection.connect(nodes.address):
        assert not cluster_checks.has_resource("GPU")
        with pytest.raises(UserError, match=r"^--num-workers 3: 3 workers with 1 CPU each were requested, and the cluster has 2 CPU on 1 "):
            cluster_checks.require_resources(3, {"CPU": 1.0}, "--num-workers 3")
        with pytest.raises(UserError, match=r"2 workers with 1 GPU each were requested, and the cluster has 0 GPU"):
            cluster_checks.require_resources(2, {"GPU": 1.0}, "--num-workers 2")
        cluster_checks.require_resources(2, {"CPU": 1.0}, "--num-workers 2")
        cluster_checks.check_same_files(tmp_path / "run", [tmp_path])
        assert list((tmp_path / "run").iterdir()) == []
        each_its_own = Path("/proc/self/cwd/run")  # another folder for each process
        monkeypatch.setenv(folder_handles.VARIABLE, "")  # restored afterwards
        folder_handles.name_paths([str(each_its_own)])  # as --run.dir does
        with pytest.raises(
            UserError, match=r"does not see the files that .* writes to /proc/self/cwd/run; choose a folder that all machines share"
        ):
            cluster_checks.check_same_files(each_its_own, [])
        (tmp_path / "here").touch()
        with pytest.raises(UserError, match=r"does not have /proc/self/cwd/here, which .* has; all machines need the same files"):
            cluster_checks.check_same_files(tmp_path / "run", [Path("/proc/self/cwd/here")])
    assert not ray.is_initialized()


@pytest.mark.slow
def test_more_gpus_than_the_cluster_has_are_refused_by_both_verbs(
    nodes: Cluster, data: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within seconds: no worker is started, and nothing is read or written."""
    own = ["--ray-address", nodes.address]
    training = [*map(str, data), "--run.dir", str(tmp_path / "run"), "--num-workers", "2", "--use-gpu", "true", *own]
    assert ray_train.main(training) == 2
    assert capsys.readouterr().err.startswith(
        "error: --num-workers 2: 2 workers with 1 GPU each were requested, and the cluster has 0 GPU "
    )
    preparing = [str(tmp_path), "--out", str(tmp_path / "out"), "--transcripts", "--engine", "ray", "--workers", "2", *own]
    assert voice.main([*preparing, "--gpus-per-worker", "0.5"]) == 2
    assert capsys.readouterr().err.startswith("error: --workers 2: 2 workers with 0.5 GPU each were requested, and the cluster has 0 GPU ")
    assert list(tmp_path.iterdir()) == [] and not ray.is_initialized() and ray_nodes.workers("RayTrainWorker") == []


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_nothing(nodes: Cluster, long: list[object], uninterrupted: Path, tmp_path: Path) -> None:
    process = start(nodes, *long, "--run.dir", tmp_path / "run", "--num-workers", 2)
    reach(EVERY + 4, tmp_path / "run", process)
    victims = ray_nodes.workers("RayTrainWorker")
    assert len(victims) == 2
    victims[0].kill()
    assert logged(tmp_path / "run") < STEPS, "the kill did not land inside the run"
    assert f"finished at step {STEPS}" in ended(process)
    assert [event["world"] for event in series(tmp_path / "run", "resumed")] == [2]
    assert losses(tmp_path / "run") == losses(uninterrupted)
    assert weights(tmp_path / "run") == weights(uninterrupted) and len(weights(tmp_path / "run")) == 2


@pytest.mark.slow
def test_a_user_error_is_reported_and_not_retried(nodes: Cluster, long: list[object], uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    said = ended(start(nodes, *long, "--run.dir", run, "--run.seed", 7, "--num-workers", 2), code=2)
    assert re.search(r"^error: .* belongs to a run with other data, base or order", said, re.MULTILINE), said
    assert said.count("Started training worker group") == 1
    assert (run / "log.jsonl").read_bytes() == (uninterrupted / "log.jsonl").read_bytes()


@pytest.mark.slow
def test_training_continues_without_a_lost_machine(long: list[object], uninterrupted: Path, tmp_path: Path) -> None:
    with ray_nodes.cluster(1, 1) as nodes:
        process = start(nodes, *long, "--run.dir", tmp_path / "run", "--num-workers", "1:2")
        reach(EVERY + 4, tmp_path / "run", process)
        nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
        ended(process)
    assert [event["world"] for event in series(tmp_path / "run", "started")] == [2]
    (resumed,) = series(tmp_path / "run", "resumed")
    assert resumed["world"] == 1 and EVERY <= resumed["step"] < STEPS
    for found, expected in zip(losses(tmp_path / "run"), losses(uninterrupted), strict=True):
        assert found[0] == expected[0] and found[1] == pytest.approx(expected[1], rel=1e-4), "as on another world size without Ray"


@pytest.mark.slow
def test_a_preemption_notice_saves_before_the_machine_goes(data: list[object], tmp_path: Path) -> None:
    """It counts as no failure: none is allowed here."""
    steps = 600
    with ray_nodes.cluster(1, 1) as nodes:
        own = ["--train.steps", steps, "--checkpoint.every", 10 * steps, "--run.dir", tmp_path / "run"]
        process = start(nodes, *data, *own, "--num-workers", "1:2", "--max-failures", 0)
        reach(2, tmp_path / "run", process)
        (going,) = nodes.worker_nodes
        drain(nodes, going.node_id, seconds=15)
        time.sleep(15)
        nodes.remove_node(going, allow_graceful=False)
        ended(process)
    (resumed,) = series(tmp_path / "run", "resumed")
    assert resumed["world"] == 1 and 2 <= resumed["step"] < steps, "the only checkpoint is that of the notice"
    assert [step for step, *_ in losses(tmp_path / "run")] == list(range(1, steps + 1))
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, steps + 1)), "no step was done twice"


def drain(nodes: Cluster, node: str, seconds: int) -> None:
    """As a cloud's agent does when a spot instance is reclaimed."""
    command = ["ray", "drain-node", "--address", nodes.address, "--node-id", node, "--deadline-remaining-seconds", str(seconds)]
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "reclaimed"]
    subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:], *reason], check=True, capture_output=True, timeout=120)


@pytest.mark.slow
def test_a_submitted_job_trains_and_a_wrong_one_says_why(data: list[object], tmp_path: Path) -> None:
    """`ray job submit` starts the command on the cluster, far from this folder."""
    with ray_nodes.cluster(2, takes_jobs=True) as nodes:
        job = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", f"http://{nodes.webui_url}", "--", sys.executable]
        asked = [*map(str, data), "--train.steps", "3", "--run.dir", "run", "--storage", str(tmp_path), "--num-workers", "2"]
        whole = [*job, str(ROOT / "finetune" / "ray_train.py"), *asked]
        done = submit(whole, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "finished at step 3" in done.stdout
        wrong = submit([*whole, "--train.stepz", "4"], tmp_path)
        assert wrong.returncode != 0 and "train.stepz" in wrong.stdout + wrong.stderr
    assert find_newest_valid(tmp_path / "run") == (tmp_path / "run" / "checkpoints" / "step-00000003", [])


def submit(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Submit a job, again if the cluster has no agent yet: its process starts beside the dashboard, which waits seconds for it."""
    deadline = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if "No available agent" not in done.stderr or time.monotonic() > deadline:
            return done
