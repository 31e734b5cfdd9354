"""Runs of `overtone voice` that are killed, stopped or lose a worker: the next run resumes and writes the bytes of an uninterrupted run.

The quick tests read transcripts and run in one process, where a callback interrupts at an exact step. The slow ones transcribe with Whisper
in worker processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import soundfile

from overtone.data_prep.audio.waveform import MASTER_RATE
from overtone.data_prep.cli import voice
from overtone.finetune.storage import files
from tests.ledger import record

ROOT = Path(__file__).resolve().parents[2]
TEXT = "The night train to the north leaves from platform seven."
RECORDINGS = 4


@dataclass(frozen=True)
class Case:
    """A command without its output folder, the stages that it stores, and the files of an uninterrupted run."""

    options: list[str]
    stages: tuple[str, ...]
    expected: dict[str, bytes]


@pytest.fixture(scope="module")
def recordings(railway, said, tmp_path_factory) -> Path:
    """Four short recordings and their transcripts."""
    folder = tmp_path_factory.mktemp("in")
    for number, sentence in enumerate(said[:RECORDINGS]):
        sound = railway.cut(int((sentence["start"] - 0.2) * MASTER_RATE), int((sentence["end"] + 0.2) * MASTER_RATE))
        soundfile.write(folder / f"{number}.wav", sound.samples, MASTER_RATE)
        (folder / f"{number}.txt").write_text(sentence["text"])
    return folder


@pytest.fixture(scope="module")
def transcripts(recordings, tmp_path_factory) -> Case:
    options = [str(recordings), "--transcripts", "--speaker", "me"]
    return Case(options, ("speech", "clips"), complete(options, tmp_path_factory.mktemp("complete") / "out"))


@pytest.fixture(scope="module")
def whisper(recordings, whisper_that_says, tmp_path_factory) -> Case:
    options = [str(recordings), "--whisper", str(whisper_that_says(TEXT)), "--preset", "keep-all"]
    return Case(options, ("speech", "words", "clips"), complete(options, tmp_path_factory.mktemp("complete") / "out"))


def complete(options: list[str], out: Path) -> dict[str, bytes]:
    assert run(options, out) == 0
    assert len((out / "train.jsonl").read_text().splitlines()) == RECORDINGS - 1
    return contents(out)


def run(options: list[str], out: Path) -> int:
    return voice.main([*options, "--out", str(out), "--workers", "0"])


def start(options: list[str], out: Path, workers: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "data_prep", "voice", *options, "--out", str(out), "--workers", str(workers)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)


def contents(out: Path) -> dict[str, bytes]:
    named = [*out.glob("*.jsonl"), out / "summary.json", *out.glob("clips/*/*"), *out.glob("refs/*")]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in named}


def count_stored(out: Path, stage: str) -> int:
    return len(list(out.glob(f".stages/{stage}/*.json")))


def wait_until_stored(process: subprocess.Popen, out: Path, stage: str, count: int) -> None:
    deadline = time.monotonic() + 300
    while count_stored(out, stage) < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def check_resume(case: Case, out: Path) -> None:
    """Another run computes what is missing, and no more, and its files are those of an uninterrupted run."""
    before = {stage: count_stored(out, stage) for stage in case.stages}
    assert run(case.options, out) == 0
    assert contents(out) == case.expected
    computed = json.loads((out / "run.json").read_text())["computed"]
    again = {stage: count + computed.get(stage, 0) - RECORDINGS for stage, count in before.items()}
    record("interrupted or killed -9: the same bytes in the end, and nothing that was done is done again", 1, sum(again.values()))
    assert not [path for path in out.rglob(".*") if ".tmp-" in path.name]


def kill_group(process: subprocess.Popen) -> None:
    """The whole group, as a scheduler or a power cut does it."""
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


KILLED = """
import os, signal, sys
from overtone.data_prep.cli import voice
from overtone.finetune.storage import files
def kill(operation, path):
    if operation == "rename" and path.parent.name == sys.argv[1] and len(list(path.parent.glob("*.json"))) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
with files.watch(kill):
    voice.main(sys.argv[2:])
"""


@pytest.mark.parametrize("stage", [pytest.param("speech", marks=pytest.mark.slow), "clips"])
def test_a_run_killed_while_it_stores_a_result_is_resumed(stage, transcripts, tmp_path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, stage, *transcripts.options, "--out", str(out), "--workers", "0"]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    assert count_stored(out, stage) == 2
    assert not (out / "train.jsonl").exists()
    check_resume(transcripts, out)


def test_after_ctrl_c_the_recording_in_progress_completes_and_the_run_is_resumed(transcripts, tmp_path, capfd) -> None:
    out, pressed = tmp_path / "out", []

    def press(operation: str, path: Path) -> None:
        if operation == "rename" and path.parent.name == "speech" and not pressed:
            pressed.append(path)
            os.kill(os.getpid(), signal.SIGINT)

    with files.watch(press):
        assert run(transcripts.options, out) == 130
    printed = capfd.readouterr().err
    assert "stopping after the items in progress" in printed and "run the same command again to resume" in printed
    assert "Traceback" not in printed
    assert count_stored(out, "speech") == count_stored(out, "clips") == 1
    check_resume(transcripts, out)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("stage", ["speech", "words", "clips"])
def test_a_run_with_workers_killed_in_any_stage_is_resumed(stage, count, whisper, tmp_path) -> None:
    process = start(whisper.options, tmp_path / "out", workers=2)
    wait_until_stored(process, tmp_path / "out", stage, count)
    kill_group(process)
    assert not (tmp_path / "out" / "train.jsonl").exists()
    check_resume(whisper, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "workers"), [(1, 1), (2, 2)])
def test_ctrl_c_in_a_terminal_reaches_the_workers_too_and_the_run_is_resumed(signals, workers, whisper, tmp_path) -> None:
    process = start(whisper.options, tmp_path / "out", workers)
    wait_until_stored(process, tmp_path / "out", "speech", 1)
    os.killpg(process.pid, signal.SIGINT)
    printed = process.stderr.readline()
    if signals == 2:
        os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 130
    printed += process.stderr.read()
    assert "stopping after the items in progress" in printed and "run the same command again to resume" in printed
    assert "Traceback" not in printed
    if signals == 1:
        assert count_stored(tmp_path / "out", "speech") == count_stored(tmp_path / "out", "clips") < RECORDINGS
    check_resume(whisper, tmp_path / "out")


@pytest.mark.slow
def test_a_run_that_loses_a_worker_writes_the_same_files(whisper, tmp_path) -> None:
    out = tmp_path / "out"
    process = start(whisper.options, out, workers=2)
    wait_until_stored(process, out, "speech", 1)
    workers = [one for one in psutil.Process(process.pid).children() if "spawn_main" in " ".join(one.cmdline())]
    assert len(workers) == 2
    workers[0].kill()
    assert process.wait(timeout=300) == 0, process.stderr.read()
    assert contents(out) == whisper.expected
    assert json.loads((out / "run.json").read_text())["model_loads"]["whisper"] <= 3


@pytest.mark.slow
def test_a_run_killed_again_and_again_at_random_moments_is_resumed(whisper, tmp_path) -> None:
    begin = time.monotonic()
    assert start(whisper.options, tmp_path / "timed", workers=2).wait() == 0
    whole = time.monotonic() - begin
    moments = random.Random(0)
    for trial in range(4):
        out = tmp_path / str(trial)
        for _ in range(3):
            process = start(whisper.options, out, workers=moments.choice((0, 1, 2)))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=moments.uniform(0.3, 1.0) * whole)
            if process.poll() is None:
                kill_group(process)
        check_resume(whisper, out)
        shutil.rmtree(out)
