"""Jobs run in processes of their own, which outlive what started them."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.studio.jobs import job_queue, job_records
from overtone.studio.jobs.job_records import JobEnd, StudioJob
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.waiting import wait_for

ROOT = Path(__file__).parents[3]


def read(place: Path, id: str) -> StudioJob:
    job = job_records.read_job(place, id)
    assert job is not None
    return job


def test_a_failed_job_keeps_its_error_and_can_be_repeated(tmp_path: Path) -> None:
    id = job_queue.start_job(tmp_path, "report", ["runs/none"], "/train")
    job = read(tmp_path, id)
    assert job.is_active
    with pytest.raises(UserError, match="has not ended"):
        job_queue.repeat_job(tmp_path, job)
    wait_for(lambda: not read(tmp_path, id).is_active)
    job = read(tmp_path, id)
    assert job.state == "failed" and job.end is not None and job.end.code == 2 and job.command.page == "/train"
    log = (job.folder / job_records.LOG).read_text()
    assert log.startswith("$ overtone report runs/none\nerror: runs/none is not a folder")
    with pytest.raises(UserError, match="has ended already"):
        job_queue.stop_job(job, at_once=False)
    again = job_queue.repeat_job(tmp_path, job)
    wait_for(lambda: not read(tmp_path, again).is_active)
    assert (read(tmp_path, again).folder / job_records.LOG).read_text() == log


def test_no_job_is_made_of_a_command_that_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leads out"):
        job_queue.start_job(tmp_path, "report", ["/etc"])
    assert not (tmp_path / ".studio").exists()


def test_a_job_that_came_with_the_folder_is_not_repeated_or_stopped(tmp_path: Path) -> None:
    job = read(tmp_path, make_folder(tmp_path, is_own=False).name)
    with pytest.raises(UserError, match="was not started by you"):
        job_queue.repeat_job(tmp_path, job)
    with pytest.raises(UserError, match="was not started by you"):
        job_queue.stop_job(job, at_once=True)
    assert job_records.list_ids(tmp_path) == [job.id]


def test_a_repeated_record_is_checked(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, command={"verb": "train", "words": ["--recipe", "evil/recipe"]})
    with pytest.raises(UserError, match="no such choice"):
        job_queue.repeat_job(tmp_path, read(tmp_path, folder.name))
    recordings = make_folder(tmp_path, command={"verb": "voice", "words": ["rec", "--out", "data/me"]})
    (tmp_path / "rec").mkdir()
    with pytest.raises(UserError, match="has no speaker_consent"):
        job_queue.repeat_job(tmp_path, read(tmp_path, recordings.name))
    assert len(job_records.list_ids(tmp_path)) == 2


def test_jobs_that_have_ended_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, lost = (make_folder(tmp_path, command={"verb": "train", "words": []}) for _ in range(2))
    job_records.write_record(done / job_records.EXIT, JobEnd(code=0, stopped=False, ended=1))
    held = []
    for verb in ("train", "text"):
        folder = make_folder(tmp_path, command={"verb": verb, "words": []})
        held.append(os.open(folder / job_records.LOCK, os.O_RDWR))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
        if verb == "train":
            active = folder
    was_read, read_job = list[str](), job_records.read_job
    monkeypatch.setattr(job_records, "read_job", lambda place, id: was_read.append(id) or read_job(place, id))
    passed = set[str]()
    for expected in ([lost.name, active.name, folder.name], [active.name]):
        was_read.clear()
        assert [job.id for job in job_queue.list_ahead(tmp_path, "9", passed)] == [active.name] and was_read == expected
    assert passed == {done.name, lost.name, folder.name}
    for one in held:
        os.close(one)


def test_a_planted_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".studio").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="link"):
        job_queue.start_job(tmp_path / "w", "report", ["runs/none"])
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_job_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom overtone.studio.jobs import job_queue\n"
        f"job_queue.start_job(Path({str(tmp_path)!r}), 'report', ['runs/none'])\nos.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60).returncode == -signal.SIGKILL
    (id,) = job_records.list_ids(tmp_path)
    assert read(tmp_path, id).is_active
    wait_for(lambda: not read(tmp_path, id).is_active)
    assert read(tmp_path, id).state == "failed"


def test_modules_of_the_folder_are_not_imported(tmp_path: Path) -> None:
    for name in ("json", "torch", "overtone", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    id = job_queue.start_job(tmp_path, "report", ["runs/none"])
    wait_for(lambda: not read(tmp_path, id).is_active)
    assert not (tmp_path / "imported").exists() and "is not a folder" in (read(tmp_path, id).folder / job_records.LOG).read_text()


def test_a_process_is_signalled_only_if_it_is_the_one_of_the_job() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
    number, started = job_records.identify_process(process.pid)
    job_queue.signal_child((number, started - 100), at_once=True)
    assert process.poll() is None
    job_queue.signal_child((number, started), at_once=False)
    assert process.wait(60) == -signal.SIGTERM
    job_queue.signal_child((number, started), at_once=True)  # it has ended: nothing happens
    assert time.time() > started and os.getpid() != number


def test_the_ranks_of_a_launcher_end_with_it() -> None:
    """They are in sessions of their own, as those of torch's launcher."""
    rank = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    code = f"import subprocess, sys; rank = {rank}; print(rank.pid, flush=True); rank.wait()"
    launcher = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    rank_identity = job_records.identify_process(int(launcher.stdout.readline()))
    job_queue.signal_child(job_records.identify_process(launcher.pid), at_once=True)
    assert launcher.wait(60) == -signal.SIGKILL
    wait_for(lambda: not job_records.is_process(*rank_identity))
