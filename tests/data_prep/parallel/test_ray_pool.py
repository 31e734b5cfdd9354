"""Workers of a Ray cluster write the same bytes as local processes, even if some are killed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("ray")

from ray.cluster_utils import Cluster

from overtone.data_prep.cli import voice
from overtone.data_prep.parallel import process_pool, ray_pool
from overtone.data_prep.parallel.process_pool import Failure, ItemResult, StopSignal
from overtone.data_prep.parallel.ray_pool import ATTEMPTS, STOPPED, RayWorker
from tests.launch import ray_nodes

ROOT = Path(__file__).resolve().parents[3]


# --- one worker, in this process


@contextlib.contextmanager
def make(number: int) -> Iterator[Callable[[str], str]]:
    yield do


def do(item: str) -> str:
    if item == "refuse":
        raise ValueError("no such thing")
    if item.startswith("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return item.upper()


@pytest.fixture
def worker(tmp_path: Path) -> RayWorker:
    return RayWorker(make, ["a", "refuse", "b"], tmp_path, str(Path.cwd()), [])


def test_a_worker_returns_the_result_and_removes_the_record_of_attempts(worker: RayWorker, tmp_path: Path) -> None:
    assert worker({"index": 0}) == {"index": 0, "result": ItemResult(value="A")}
    assert worker({"index": 1}) == {"index": 1, "result": Failure("ValueError: no such thing")}
    assert list(tmp_path.iterdir()) == []


def test_an_item_that_crashed_three_workers_fails(worker: RayWorker, tmp_path: Path) -> None:
    (tmp_path / "2").write_text("here\n" * (ATTEMPTS - 1))
    assert worker({"index": 2}) == {"index": 2, "result": ItemResult(value="B")}
    (tmp_path / "2").write_text("here\n" * ATTEMPTS)
    assert worker({"index": 2}) == {"index": 2, "result": Failure("its workers died, 3 times, on here")}
    assert worker({"index": 2}) == {"index": 2, "result": ItemResult(value="B")}, "of another list of items"


def test_after_a_stop_no_item_is_started(worker: RayWorker, tmp_path: Path) -> None:
    (tmp_path / STOPPED).touch()
    assert worker({"index": 0}) == {"index": 0, "result": None}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ray-address", "auto"], "--ray-address and --gpus-per-worker need --engine ray"),
        (["--gpus-per-worker", "0.5"], "--ray-address and --gpus-per-worker need --engine ray"),
        (["--engine", "ray", "--device", "cuda"], "--engine ray: use --gpus-per-worker (0 or more) instead of --device"),
        (["--engine", "ray", "--workers", "0"], "and at least 1 for --workers"),
        (["--engine", "ray", "--ray-address", "127.0.0.1:1"], "no Ray cluster at 127.0.0.1:1: "),
    ],
)
def test_contradicting_ray_options_are_refused(argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert voice.main([str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--transcripts", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_ray_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    assert voice.main([str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--transcripts", "--engine", "ray"]) == 2
    assert capsys.readouterr().err == "error: Ray is not installed; `pip install 'overtone[ray]'`, on every machine of the cluster\n"
    assert not (tmp_path / "out").exists()


# --- real clusters


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with ray_nodes.cluster(2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def recordings(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, and a file that no decoder reads."""
    folder = tmp_path_factory.mktemp("in") / "recordings"
    folder.mkdir()
    for speaker in ("rms", "slt"):
        (folder / speaker).symlink_to(sample / speaker)
    (folder / "broken.mp3").write_bytes(b"\x01\x02" * 999)
    (folder / "broken.txt").write_text("Nobody will hear this.")
    return folder


@pytest.fixture(scope="module")
def local(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("local") / "out"
    assert voice.main([*arguments(recordings, out), "--workers", "0"]) == 0
    return contents(out)


def arguments(recordings: Path, out: Path) -> list[str]:
    return [str(recordings), "--out", str(out), "--transcripts", "--speaker", "me", "--language", "en"]


def contents(out: Path) -> dict[str, bytes]:
    """What a run promises to repeat byte by byte."""
    named = [*out.glob("*.jsonl"), out / "summary.json", *out.glob("clips/*/*"), *out.glob("refs/*")]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in named}


def start(nodes: Cluster, *argv: str, verb: str = "voice") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "data_prep", verb, *argv, "--engine", "ray", "--ray-address", nodes.address]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output
    return output


@pytest.mark.slow
def test_a_cluster_writes_the_bytes_of_one_machine_even_if_a_worker_dies(
    nodes: Cluster, recordings: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(nodes, *arguments(recordings, out), "--workers", "2")
    kill_one(process, out / ".stages")
    output = ended(process)
    assert "× real time" in output and "broken.mp3: rejected" in output
    assert contents(out) == local and len(local) >= 40
    assert not (out / ".attempts").exists()
    again = ended(start(nodes, *arguments(recordings, out)))
    assert contents(out) == local and "× real time" not in again
    assert json.loads((out / "run.json").read_text())["computed"] == {}, "what is done is not done again"


def kill_one(process: subprocess.Popen[str], stages: Path) -> None:
    """End a worker by SIGKILL while it has a recording in hand."""
    deadline = time.monotonic() + 1000
    while not (stages / "speech").is_dir() or not list((stages.parent / ".attempts").glob("[0-9]*")):
        assert process.poll() is None and time.monotonic() < deadline, "the run ended before its worker could be killed"
        time.sleep(0.01)
    victims = ray_nodes.workers("MapWorker")
    assert victims, [member.cmdline() for member in ray_nodes.family()]
    victims[0].kill()


@pytest.mark.slow
def test_the_items_of_a_lost_machine_are_processed_on_another_machine(recordings: Path, local: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ray_nodes.cluster(1, 1) as nodes:
        process = start(nodes, *arguments(recordings, out), "--workers", "2")
        until_at_work(process, out, 2)
        nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
        ended(process)
    assert contents(out) == local


def until_at_work(process: subprocess.Popen[str], out: Path, items: int) -> None:
    """So many items are in the hands of workers."""
    deadline = time.monotonic() + 1000
    while len(list((out / ".attempts").glob("[0-9]*"))) < items:
        assert process.poll() is None and time.monotonic() < deadline, "the run ended before its workers were busy"
        time.sleep(0.01)


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    folder = tmp_path / "one" / "data"
    (folder / "clips").mkdir(parents=True)
    chance = np.random.default_rng(0)
    names = [f"{number:02}" for number in range(24)]
    for name in names:
        soundfile.write(folder / "clips" / f"{name}.flac", chance.uniform(-0.3, 0.3, int(chance.integers(24_000, 72_000))), 24_000)
    lines = [{"audio": f"clips/{name}.flac", "text": "Text.", "speaker": "me"} for name in names]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.slow
def test_a_cluster_computes_the_codes_of_one_process_even_if_a_worker_dies(nodes: Cluster, clips: Path, nano: Path, tmp_path: Path) -> None:
    """Here, in two processes, on a cluster, and on one that loses a worker."""
    found = {}
    for name in ("here", "two", "ray"):
        data = shutil.copytree(clips, tmp_path / name)
        argv = [str(data), "--model", str(nano), "--batch-seconds", "3"]
        if name == "ray":
            process = start(nodes, *argv, "--workers", "2", verb="codes")
            until_at_work(process, data, 2)
            victims = ray_nodes.workers("MapWorker")
            assert victims, [member.cmdline() for member in ray_nodes.family()]
            victims[0].kill()
            assert "24 clips, " in ended(process)
        else:
            shared = ["--device", "cpu", "--workers", "0" if name == "here" else "2"]
            subprocess.run([sys.executable, "-m", "data_prep", "codes", *argv, *shared], cwd=ROOT, check=True)
        found[name] = (data / "train.jsonl").read_bytes()
    assert found["here"] == found["two"] == found["ray"] and b"audio_codes" in found["here"]


@pytest.mark.slow
def test_an_item_that_kills_every_worker_fails_and_the_others_complete(nodes: Cluster, tmp_path: Path) -> None:
    items = ["a", "die", "b", "refuse"]
    with StopSignal() as stop, ray_pool.connect_workers(nodes.address, None, 0.0, tmp_path / "shared", []) as remote:
        assert remote.workers == 2
        found = dict(ray_pool.run_items(items, make, remote, stop))
    assert found[0] == "A" and found[2] == "B" and found[3] == Failure("ValueError: no such thing")
    assert isinstance(found[1], Failure) and found[1].why.startswith(f"its workers died, {ATTEMPTS} times, on ")
    assert list((tmp_path / "shared").iterdir()) == []
    with StopSignal() as stop:
        assert dict(process_pool.run_items(["a", "b"], make, 0, stop)) == {0: "A", 1: "B"}, "as on one machine"
