"""`overtone generate` of a file, in one process and on a Ray cluster that loses a worker in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ray.cluster_utils import Cluster

from tests.launch import ray_nodes
from tests.launch.launching import ALONE, ROOT

PATIENCE = 1200
TEXTS = [f"Line {number} of {'many ' * (number % 5)}texts." for number in range(24)]


@contextmanager
def started(verb: str, *argv: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "finetune", verb, *map(str, argv)]
    process = subprocess.Popen(command, cwd=ROOT, env=ALONE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output + errors
    return output


def run(verb: str, *argv: object) -> str:
    with started(verb, *argv) as process:
        return ended(process)


def kill_a_worker(process: subprocess.Popen[str], has_begun: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not has_begun():
        assert process.poll() is None and time.monotonic() < deadline, "the command ended before its worker could be killed"
        time.sleep(0.01)
    victims = ray_nodes.workers("MapWorker")
    assert victims, [member.cmdline() for member in ray_nodes.family()]
    victims[0].kill()


def wavs_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def check_speech(nodes: Cluster, tmp_path: Path, model: Path, recipe: str, *argv: object) -> None:
    """Wavs and manifest of a cluster that loses a worker are those of one process; a second command speaks nothing."""
    (tmp_path / "lines.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    common = ["--model", model, "--recipe", recipe, "--text-file", tmp_path / "lines.txt", "--batch", 2, "--seed", 3, *argv]
    run("generate", *common, "--out", tmp_path / "local")
    local = wavs_of(tmp_path / "local")
    assert len(local) == len(TEXTS) + 1 and len({data for name, data in local.items() if name.endswith(".wav")}) > 1
    out = tmp_path / "ray"
    engine = ["--engine", "ray", "--ray-address", nodes.address, "--workers", 2, "--out", out]
    with started("generate", *common, *engine) as process:
        kill_a_worker(process, (out / "manifest.jsonl").exists)
        ended(process)
    assert wavs_of(out) == local
    (out / "00003.wav").unlink()
    assert f"{len(TEXTS)} wavs, {len(TEXTS) - 1} of them from an earlier run" in run("generate", *common, *engine)
    assert wavs_of(out).keys() == local.keys()


def check_evaluation(nodes: Cluster, tmp_path: Path, model: Path, recipe: str, speaker: str, *argv: object) -> None:
    """The clips of `eval-voice` on a cluster that loses a worker are those of one process."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": text, "speaker": speaker}) + "\n" for text in TEXTS))
    common = ["--model", model, "--recipe", recipe, "--data", rows, "--batch", 2, "--max-seconds", 1, *argv]
    run("eval-voice", *common, "--out", tmp_path / "here")
    engine = ["--engine", "ray", "--ray-address", nodes.address, "--workers", 2, "--out", tmp_path / "there"]
    with started("eval-voice", *common, *engine) as process:
        kill_a_worker(process, lambda: any((tmp_path / "there" / "clips").rglob("*.flac")))
        ended(process)
    (here,), (there,) = ([*(tmp_path / name / "clips").iterdir()] for name in ("here", "there"))
    assert wavs_of(here) == wavs_of(there) and len([*here.iterdir()]) == len(TEXTS)
    kept = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("here", "there")]
    assert kept[0]["settings"]["engine"] == "local" and kept[1]["settings"]["engine"] == "ray"
