"""Killed, stopped and crashed runs of the verb: nothing is lost, nothing is done twice, and the bytes are those of a quiet run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import soundfile

from data_prep.audio.waveform import MASTER_RATE
from data_prep.cli import voice
from tests.ledger import record

ROOT = Path(__file__).resolve().parents[2]
TEXT = "The night train to the north leaves from platform seven."
RECORDINGS = 4


@pytest.fixture(scope="module")
def options(whisper_that_says, railway, said, tmp_path_factory) -> list[str]:
    """Four short recordings for a Whisper that is quick."""
    recordings = tmp_path_factory.mktemp("in")
    for number, sentence in enumerate(said[:RECORDINGS]):
        sound = railway.cut(int((sentence["start"] - 0.2) * MASTER_RATE), int((sentence["end"] + 0.2) * MASTER_RATE))
        soundfile.write(recordings / f"{number}.wav", sound.samples, MASTER_RATE)
    return ["voice", str(recordings), "--whisper", str(whisper_that_says(TEXT)), "--preset", "keep-all"]


@pytest.fixture(scope="module")
def quiet(options, tmp_path_factory) -> dict[str, bytes]:
    """What an uninterrupted run gives."""
    out = tmp_path_factory.mktemp("quiet") / "out"
    assert finished(options, out) == 0
    assert len((out / "train.jsonl").read_text().splitlines()) == RECORDINGS - 1
    return contents(out)


def started(options: list[str], out: Path, workers: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "data_prep", *options, "--out", str(out), "--workers", str(workers)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finished(options: list[str], out: Path) -> int:
    return voice.main([*options[1:], "--out", str(out), "--workers", "0"])


def contents(out: Path) -> dict[str, bytes]:
    named = [*out.glob("*.jsonl"), out / "summary.json", *out.glob("clips/*/*"), *out.glob("refs/*")]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in named}


def done(out: Path) -> dict[str, int]:
    return {stage: len(list(out.glob(f".stages/{stage}/*.json"))) for stage in ("speech", "words", "clips")}


def wait_for(process: subprocess.Popen, out: Path, stage: str, count: int) -> None:
    while done(out)[stage] < count:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)


def goes_on(options: list[str], out: Path, quiet: dict[str, bytes]) -> None:
    """Another run does what is missing, and no more, and gives what a quiet one gives."""
    before = done(out)
    assert finished(options, out) == 0
    assert contents(out) == quiet
    computed = json.loads((out / "run.json").read_text())["computed"]
    again = {stage: count + computed.get(stage, 0) - RECORDINGS for stage, count in before.items()}
    record("interrupted or killed -9: the same bytes in the end, and nothing that was done is done again", 1, sum(again.values()))
    assert not [path for path in out.rglob(".*") if ".tmp-" in path.name]


def kill_all(process: subprocess.Popen) -> None:
    """The whole group, as a scheduler or a power cut does it."""
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("stage", "count"),
    [("words", 2)] + [pytest.param(stage, count, marks=pytest.mark.slow) for stage in ("speech", "words", "clips") for count in (1, 3)],
)
def test_killed_in_any_stage(stage, count, options, quiet, tmp_path) -> None:
    process = started(options, tmp_path / "out", workers=2)
    wait_for(process, tmp_path / "out", stage, count)
    kill_all(process)
    assert not (tmp_path / "out" / "train.jsonl").exists()
    goes_on(options, tmp_path / "out", quiet)


@pytest.mark.parametrize(("signals", "workers"), [(1, 1), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_stopped_by_ctrl_c(signals, workers, options, quiet, tmp_path) -> None:
    """A terminal sends it to every process of the group."""
    process = started(options, tmp_path / "out", workers)
    wait_for(process, tmp_path / "out", "speech", 1)
    for _ in range(signals):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.2)
    assert process.wait(timeout=120) == 130
    told = process.stderr.read()
    assert "run the same command again to resume" in told
    assert "Traceback" not in told
    if signals == 1:
        assert "stopping after the items in progress" in told
        assert done(tmp_path / "out")["speech"] == done(tmp_path / "out")["clips"] < RECORDINGS
    goes_on(options, tmp_path / "out", quiet)


@pytest.mark.slow
def test_a_worker_that_dies_costs_nothing(options, quiet, tmp_path) -> None:
    out = tmp_path / "out"
    process = started(options, out, workers=2)
    wait_for(process, out, "speech", 1)
    workers = [one for one in psutil.Process(process.pid).children() if "spawn_main" in " ".join(one.cmdline())]
    assert len(workers) == 2
    workers[0].kill()
    assert process.wait(timeout=300) == 0, process.stderr.read()
    assert contents(out) == quiet
    assert json.loads((out / "run.json").read_text())["model_loads"]["whisper"] <= 3


@pytest.mark.slow
def test_killed_again_and_again_at_random_moments(options, quiet, tmp_path) -> None:
    begin = time.monotonic()
    assert started(options, tmp_path / "timed", workers=2).wait() == 0
    whole = time.monotonic() - begin
    moments = random.Random(0)
    for trial in range(4):
        out = tmp_path / str(trial)
        for _ in range(3):
            process = started(options, out, workers=moments.choice((0, 1, 2)))
            time.sleep(moments.uniform(0.3, 1.0) * whole)
            if process.poll() is None:
                kill_all(process)
        goes_on(options, out, quiet)
        shutil.rmtree(out)
