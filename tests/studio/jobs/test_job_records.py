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
from overtone.studio.jobs.job_records import JobCommand, JobEnd, JobProcess, find_state
from overtone.studio.jobs.job_signatures import sign_text

PROCESS = JobProcess(runner=(1, 0.0), child=(2, 0.0), started=0.0)


def make_folder(place: Path, id: str | None = None, command: dict[str, object] | None = None, is_own: bool = True) -> Path:
    folder = place / job_records.JOBS / (id or job_records.make_id())
    folder.mkdir(parents=True)
    (folder / job_records.LOCK).touch()
    record = JobCommand.model_validate(command or {"verb": "report", "words": ["runs/a"], "page": "/train"})
    if is_own:
        record.signature = sign_text(record.format_for_signature(folder.name))
    job_records.write_record(folder / job_records.COMMAND, record)
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


@pytest.mark.parametrize(
    "command",
    [
        [],
        {"verb": "check"},
        {"verb": 1, "words": []},
        {"verb": "check", "words": [], "more": 1},
        {"verb": "check \u202e", "words": []},
    ],
)
def test_a_record_that_is_something_else_counts_as_missing(command: object, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / job_records.COMMAND).write_text(json.dumps(command))
    assert job_records.read_job(tmp_path, folder.name) is None and job_records.list_jobs(tmp_path) == []


def test_a_job_is_own_if_this_user_has_signed_all_of_it(tmp_path: Path) -> None:
    def is_own(id: str) -> bool:
        job = job_records.read_job(tmp_path, id)
        assert job is not None
        return job.is_own

    folder = make_folder(tmp_path)
    assert is_own(folder.name) and not is_own(make_folder(tmp_path, is_own=False).name)
    moved = folder.rename(folder.with_name(job_records.make_id()))
    assert not is_own(moved.name)
    folder = make_folder(tmp_path)
    record = json.loads((folder / job_records.COMMAND).read_text())
    for change in ({"verb": "export"}, {"words": ["runs/b"]}, {"page": "/use"}, {"signature": "\u00e9"}):
        (folder / job_records.COMMAND).write_text(json.dumps({**record, **change}))
        assert not is_own(folder.name)


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
