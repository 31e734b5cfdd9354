"""Starts, stops and repeats jobs. Several studios, and runners that wait, may use one folder at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, folder_handles
from overtone.studio.folder_content import PLACE
from overtone.studio.jobs import job_records, job_signatures
from overtone.studio.jobs.job_commands import QUEUED, check_command
from overtone.studio.jobs.job_records import JobCommand, StudioJob

RUNNER = "overtone.studio.jobs.job_runner"


def start_job(place: Path, verb: str, words: Sequence[str], page: str = "") -> str:
    """Start a verb as a job in the folder `place` and return its id. It waits there if another one has the GPU.

    `page`: address of the page that made it. Raises `UserError` for a command that the studio does not start.
    """
    check_command(place, verb, words)
    id = job_records.make_id()
    command = JobCommand(verb=verb, words=list(words), page=page)
    command.signature = job_signatures.sign_text(command.format_for_signature(id))
    folder = place / job_records.JOBS / id
    files.make_private(place / PLACE)
    files.make_folder(folder.parent)
    with files.new_folder(folder) as temporary:
        job_records.write_record(temporary / job_records.COMMAND, command)
        held = folder_handles.open_file(temporary / job_records.LOCK, os.O_RDWR | os.O_CREAT)
        try:  # before anyone can see the folder: its runner inherits the lock, so that the job never looks lost
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(held)
            raise UserError(f"{place} has no file locks ({error.strerror}); put the studio's folder on a local disk") from error
    try:
        _start_runner(place, id, held)
    finally:
        os.close(held)
    return id


def _start_runner(place: Path, id: str, held: int) -> None:
    # PYTHONSAFEPATH: otherwise Python would import modules from the folder of the data.
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    log = folder_handles.open_file(place / job_records.JOBS / id / job_records.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", RUNNER, str(place), id, str(held)],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[held],
            start_new_session=True,
        )
    finally:
        os.close(log)
    threading.Thread(target=process.wait, name=f"job {id}", daemon=True).start()  # collects its exit status


def repeat_job(place: Path, job: StudioJob) -> str:
    """Start the command of a job that has ended again, as a new job, which resumes what the verb can resume; returns its id."""
    require_own(job)
    if job.is_active:
        raise UserError(f"job {job.id} has not ended; stop it first")
    return start_job(place, job.command.verb, job.command.words, job.command.page)


def stop_job(job: StudioJob, at_once: bool) -> None:
    """Request that a job ends: training saves first, unless `at_once`. Raises `UserError` if it has ended already."""
    require_own(job)
    if not job.is_active:
        raise UserError(f"job {job.id} has ended already; reload the page")
    job_records.write_record(job.folder / job_records.STOP, job_records.StopRequest(at_once=at_once))
    if job.process is not None and not job_records.is_process(*job.process.runner):  # its runner was killed and cannot pass it on
        signal_child(job.process.child, at_once)


def require_own(job: StudioJob) -> None:
    """Raise `UserError` for a job that somebody else has started, or another machine."""
    if not job.is_own:  # its record came with the folder: it may name any command, and any process of this machine
        raise UserError(f"job {job.id} was not started by you on this machine; read its command, and start it in a terminal")


def signal_child(child: tuple[int, float], at_once: bool) -> None:
    """Send the process of a job the signal at which it saves and ends; `at_once`: kill it, its group, and all processes below it, since a
    launcher starts each rank in a session of its own."""
    if not job_records.is_process(*child):
        return
    if not at_once:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child[0], signal.SIGTERM)
        return
    below = list[psutil.Process]()
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(child[0]).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child[0], signal.SIGKILL)
    for process in below:
        with contextlib.suppress(psutil.Error):
            process.kill()


def list_ahead(place: Path, id: str, passed: set[str]) -> list[StudioJob]:
    """Return the jobs that the queue runs before a job, the first one first.

    `passed`: ids of jobs that need not be read, as they have ended or do not use the queue; those that are found are added.
    """
    ahead = list[StudioJob]()
    for other in job_records.list_ids(place):
        if other >= id or other in passed:
            continue
        has_ended = folder_handles.stat_without_following(place / job_records.JOBS / other / job_records.EXIT) is not None
        job = None if has_ended else job_records.read_job(place, other)
        if job is not None and job.is_active and job.command.verb in QUEUED:
            ahead.append(job)
        else:
            passed.add(other)
    return ahead
