"""The state of a job comes from its folder, which may hold anything."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_records import JobEnd, JobProcess, find_state

PROCESS = JobProcess(runner=(1, 0.0), child=(2, 0.0), started=0.0)


def make_folder(place: Path, id: str | None = None, command: object = None) -> Path:
    folder = place / job_records.JOBS / (id or job_records.make_id())
    folder.mkdir(parents=True)
    (folder / job_records.LOCK).touch()
    (folder / job_records.COMMAND).write_text(json.dumps(command or {"verb": "report", "words": ["runs/a"], "page": "/train"}))
    return folder


@pytest.mark.parametrize(
    ("is_held", "process", "end", "state"),
    [
        (True, None, None, "waiting"),
        (True, PROCESS, None, "running"),
        (False, PROCESS, None, "lost"),
        (False, None, None, "lost"),
        (False, PROCESS, JobEnd(code=0, stopped=False, ended=1), "done"),
        (True, PROCESS, JobEnd(code=0, stopped=False, ended=1), "done"),
        (False, PROCESS, JobEnd(code=2, stopped=False, ended=1), "failed"),
        (False, PROCESS, JobEnd(code=-15, stopped=True, ended=1), "stopped"),
    ],
)
def test_the_states(is_held: bool, process: JobProcess | None, end: JobEnd | None, state: str) -> None:
    assert find_state(is_held, process, end) == state


def test_a_job_lives_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    descriptor = os.open(folder / job_records.LOCK, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    job = job_records.read_job(tmp_path, folder.name)
    assert job is not None and job.state == "waiting" and job.is_active and abs(job.created - time.time()) < 60
    os.close(descriptor)
    job = job_records.read_job(tmp_path, folder.name)
    assert job is not None and job.state == "lost" and not job.is_active


def test_jobs_are_listed_in_the_order_of_their_start(tmp_path: Path) -> None:
    names = [make_folder(tmp_path).name for _ in range(3)]
    make_folder(tmp_path, "not a job")
    assert [job.id for job in job_records.list_jobs(tmp_path)] == names and job_records.list_ids(tmp_path / "none") == []


@pytest.mark.parametrize("command", [[], {"verb": "check"}, {"verb": 1, "words": []}, {"verb": "check", "words": [], "more": 1}])
def test_a_record_that_is_something_else_counts_as_missing(command: object, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, command=command or [1])
    assert job_records.read_job(tmp_path, folder.name) is None and job_records.list_jobs(tmp_path) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a")
    secret = tmp_path / "secret.txt"
    secret.write_text("precious")
    (folder / job_records.LOG).symlink_to(secret)
    with pytest.raises(UserError, match="link"):
        job_records.read_file(folder / job_records.LOG, 100)
    (tmp_path / "b" / ".studio").mkdir(parents=True)
    (tmp_path / "b" / job_records.JOBS).symlink_to(tmp_path / "a" / job_records.JOBS)
    with pytest.raises(UserError, match="is a link"):
        job_records.list_ids(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".studio").symlink_to(tmp_path / "a" / ".studio")
    with pytest.raises(UserError, match="link"):
        job_records.list_ids(tmp_path / "c")
    link = tmp_path / "a" / job_records.JOBS / job_records.make_id()
    link.symlink_to(folder)
    assert job_records.list_ids(tmp_path / "a") == [folder.name]


def test_a_process_is_known_by_its_start(tmp_path: Path) -> None:
    number, started = job_records.identify_process(os.getpid())
    assert job_records.is_process(number, started) and not job_records.is_process(number, started - 100)
    assert not job_records.is_process(2**22 + 1, started) and not job_records.is_process(2**70, started)


def test_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a" * 100 + b"end")
    assert job_records.read_file(tmp_path / "log", 5) == b"aaend"
