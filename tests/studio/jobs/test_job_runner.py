"""The runner waits for its turn, passes on requests to stop, and records the end."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.studio.jobs import job_queue, job_records, job_runner
from overtone.studio.jobs.job_records import JobCommand, JobProcess, StopRequest, StudioJob
from overtone.studio.jobs.job_signatures import sign_text
from tests.studio.waiting import wait_for

SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
SAVES = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (open('saved', 'w').close(), sys.exit(0))); "
    "open('ready', 'w').close(); time.sleep(600)"
)
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w').close(); time.sleep(600)"


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_runner, "SECONDS", 0.01)


def make_job(place: Path, verb: str = "train", words: tuple[str, ...] = ()) -> tuple[StudioJob, int]:
    """A job whose lock this process holds."""
    folder = place / job_records.JOBS / job_records.make_id()
    folder.mkdir(parents=True)
    command = JobCommand(verb=verb, words=list(words))
    command.signature = sign_text(command.format_for_signature(folder.name))
    job_records.write_record(folder / job_records.COMMAND, command)
    held = os.open(folder / job_records.LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    return read(place, folder.name), held


def read(place: Path, id: str) -> StudioJob:
    job = job_records.read_job(place, id)
    assert job is not None
    return job


def run(place: Path, job: StudioJob, held: int, code: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[int, bool]]:
    """Start a job in a thread; returns what waits for its result."""
    monkeypatch.setattr(job_runner, "PROGRAM", [sys.executable, "-c", code])
    results = list[tuple[int, bool]]()
    thread = threading.Thread(target=lambda: results.append(job_runner.run_job(place, job, held)), daemon=True)
    thread.start()

    def finish() -> tuple[int, bool]:
        thread.join(60)
        os.close(held)
        return results[0]

    return finish


def test_the_request_to_stop_lets_the_verb_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, held = make_job(tmp_path)
    finish = run(tmp_path, job, held, SAVES, monkeypatch)
    wait_for(lambda: (tmp_path / "ready").exists() and read(tmp_path, job.id).process)
    assert read(tmp_path, job.id).state == "running"
    job_queue.stop_job(read(tmp_path, job.id), at_once=False)
    assert finish() == (0, True) and (tmp_path / "saved").exists()


def test_a_verb_that_does_not_end_can_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, held = make_job(tmp_path)
    finish = run(tmp_path, job, held, STUBBORN, monkeypatch)
    wait_for(lambda: (tmp_path / "ready").exists() and read(tmp_path, job.id).process)
    job_queue.stop_job(read(tmp_path, job.id), at_once=False)
    job_queue.stop_job(read(tmp_path, job.id), at_once=True)
    assert finish() == (-9, True)


def test_training_jobs_run_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, held = make_job(tmp_path)
    finish = run(tmp_path, first, held, SAVES, monkeypatch)
    wait_for(lambda: (tmp_path / "ready").exists())
    second, held_too = make_job(tmp_path)
    text, held_text = make_job(tmp_path, "text")
    finish_second = run(tmp_path, second, held_too, "raise SystemExit(3)", monkeypatch)
    assert run(tmp_path, text, held_text, "raise SystemExit(3)", monkeypatch)() == (3, False)  # needs no GPU, and waits for nobody
    assert [job.id for job in job_queue.list_ahead(tmp_path, second.id, set())] == [first.id] and read(
        tmp_path, second.id
    ).state == "waiting"
    wait_for(lambda: read(tmp_path, first.id).process)
    job_queue.stop_job(read(tmp_path, first.id), at_once=False)
    assert finish() == (0, True)
    assert finish_second() == (3, False)


def test_a_job_that_waits_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, held = make_job(tmp_path)
    second, held_too = make_job(tmp_path)
    finish = run(tmp_path, second, held_too, "raise SystemExit(3)", monkeypatch)
    job_queue.stop_job(read(tmp_path, second.id), at_once=False)
    assert finish() == (0, True) and read(tmp_path, second.id).process is None
    os.close(held)


def test_a_job_whose_runner_was_killed_still_runs_and_can_be_stopped(tmp_path: Path) -> None:
    import subprocess

    job, held = make_job(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", SAVES], cwd=tmp_path, pass_fds=[held], start_new_session=True)
    os.close(held)
    record = JobProcess(runner=(os.getpid(), 0.0), child=job_records.identify_process(child.pid), started=0)
    job_records.write_record(job.folder / job_records.PROCESS, record)
    wait_for(lambda: (tmp_path / "ready").exists())
    assert read(tmp_path, job.id).state == "running"
    job_queue.stop_job(read(tmp_path, job.id), at_once=False)
    assert child.wait(60) == 0 and (tmp_path / "saved").exists() and read(tmp_path, job.id).state == "lost"


def test_the_end_is_recorded_also_of_a_command_that_is_refused(tmp_path: Path) -> None:
    import subprocess

    job, held = make_job(tmp_path, "train", ("--recipe", "evil/recipe"))
    command = [sys.executable, "-m", "overtone.studio.jobs.job_runner", str(tmp_path), job.id, str(held)]
    done = subprocess.run(command, pass_fds=[held], capture_output=True, text=True, timeout=60, check=False)
    os.close(held)
    assert done.stdout.startswith("error: --recipe evil/recipe: no such choice"), done.stdout + done.stderr
    end = read(tmp_path, job.id).end
    assert end is not None and (end.code, end.stopped) == (2, False)


@pytest.mark.parametrize(
    ("reason", "signalled", "stopped"),
    [("stopped by SIGTERM on rank 0", False, True), ("finished", True, False), ("failed", True, True), (None, False, False)],
)
def test_training_was_stopped_if_its_run_says_so(
    reason: str | None, signalled: bool, stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    if reason is not None:
        (tmp_path / "runs" / "a" / "exit.json").write_text(json.dumps({"reason": reason}))
    for verb, words, expected in (
        ("train", ("--run.dir", "runs/a"), stopped),
        ("train", ("--run.dir=runs/b", "--run.dir=runs/a"), stopped),
        ("plan", ("--run.dir", "runs/a"), signalled),
    ):
        job, held = make_job(tmp_path, verb, words)
        if signalled:
            job_records.write_record(job.folder / job_records.STOP, StopRequest(at_once=False))
            monkeypatch.setattr(job_runner, "wait_for_turn", lambda *_: True)
        assert run(tmp_path, job, held, "import time; time.sleep(0.3)", monkeypatch)()[1] == expected
    assert job_runner.find_run_folder(["--run.dir"]) is None


@pytest.mark.parametrize("name", [job_records.EXIT, job_records.PROCESS, job_records.STOP])
def test_a_link_at_a_record_is_replaced_and_its_target_stays(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    job, held = make_job(tmp_path)
    (job.folder / name).symlink_to(precious)
    finish = run(tmp_path, job, held, "pass", monkeypatch)
    assert finish() == (0, False) and precious.read_text() == "precious"


def test_a_link_at_the_lock_of_the_queue_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    job, held = make_job(tmp_path)
    (tmp_path / job_records.QUEUE_LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="is a link"):
        job_runner.run_job(tmp_path, job, held)
    os.close(held)
    assert (tmp_path / "precious").read_text() == "precious"
