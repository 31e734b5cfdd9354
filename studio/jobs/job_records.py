"""The folder of a job: its command, log, processes and end. The state of a job is in these files, and in a lock that its processes hold.

The folder may come from anywhere: links are not followed, and a record that cannot be read counts as missing.
"""

from __future__ import annotations

import calendar
import contextlib
import fcntl
import json
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import psutil
from pydantic import BaseModel, Field

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, folder_handles, strict_json
from overtone.studio.folder_content import PLACE
from overtone.studio.jobs import job_signatures

JOBS = PLACE / "jobs"
QUEUE_LOCK = PLACE / "queue.lock"
COMMAND, LOG, PROCESS, STOP, EXIT, LOCK = "command.json", "log.txt", "process.json", "stop.json", "exit.json", "lock"
ID = r"[0-9]{8}-[0-9]{6}-[0-9]{9}"
"""Time at which a job was made, in UTC, to the nanosecond. Also the order of the queue."""
LARGEST_RECORD = 2**22
TAIL = 2**16
"""Bytes at the end of a log that a page shows."""
Record = TypeVar("Record", bound=BaseModel)
JobState = Literal["waiting", "running", "done", "stopped", "failed", "lost"]


class JobCommand(BaseModel, extra="forbid"):
    """The command of a job."""

    verb: str = Field(pattern=r"^[a-z][a-z-]{0,39}$")
    words: list[str]
    page: str = ""
    """Address of the page that made the job, to change its settings; empty if none did."""
    signature: str = ""
    """Signature of the user who started the job."""

    def format_for_signature(self, id: str) -> str:
        """Return the text that is signed for the job with this id."""
        return json.dumps([id, self.verb, self.words, self.page])


class JobProcess(BaseModel):
    """The processes of a job that has started."""

    runner: tuple[int, float]
    """Process and its start in seconds since the epoch, since numbers of processes are used again."""
    child: tuple[int, float]
    started: float


class StopRequest(BaseModel):
    """The request to stop a job."""

    at_once: bool
    """True: kill it, without waiting for a save."""


class JobEnd(BaseModel):
    """The end of a job."""

    code: int
    """Exit code; negative: the signal that ended it."""
    stopped: bool
    """True if it was stopped and not finished."""
    ended: float


@dataclass(frozen=True)
class StudioJob:
    """One job, as its folder says at one moment."""

    folder: Path
    command: JobCommand
    state: JobState
    process: JobProcess | None
    end: JobEnd | None
    stop: StopRequest | None
    is_own: bool
    """True if this user started it on this machine; False for a job that came with the folder."""

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def created(self) -> float:
        """Seconds since the epoch; 0 for a folder that somebody else has named."""
        try:
            return calendar.timegm(time.strptime(self.id[:15], "%Y%m%d-%H%M%S"))
        except ValueError:
            return 0.0

    @property
    def is_active(self) -> bool:
        return self.state in ("waiting", "running")


def make_id() -> str:
    """Return the name of a new job."""
    now = time.time_ns()
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now // 10**9))}-{now % 10**9:09d}"


def list_ids(place: Path) -> list[str]:
    """Return the ids of the jobs in a studio's folder, the oldest first. Raises `UserError` if a link leads to them."""
    folder = place / JOBS
    found = folder_handles.stat_without_following(folder)
    if found is None:
        return []
    if not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{folder} is a link or a file, not a folder; remove it")
    return sorted(one.name for one in os.scandir(folder) if re.fullmatch(ID, one.name) and one.is_dir(follow_symlinks=False))


def list_jobs(place: Path) -> list[StudioJob]:
    """Return the jobs in a studio's folder, the oldest first."""
    return [job for id in list_ids(place) if (job := read_job(place, id)) is not None]


def read_job(place: Path, id: str) -> StudioJob | None:
    """Return a job; None if there is none with this id, or its command cannot be read."""
    folder = place / JOBS / id
    if not re.fullmatch(ID, id) or (command := _read(folder / COMMAND, JobCommand)) is None:
        return None
    # The lock comes first: a job that ends in between has written its end before it gave up the lock.
    is_held = holds_lock(folder / LOCK)
    end, process, stop = _read(folder / EXIT, JobEnd), _read(folder / PROCESS, JobProcess), _read(folder / STOP, StopRequest)
    is_own = job_signatures.is_signed(command.format_for_signature(id), command.signature)
    return StudioJob(folder, command, find_state(is_held, process, end), process, end, stop, is_own)


def find_state(is_held: bool, process: JobProcess | None, end: JobEnd | None) -> JobState:
    """Return the state of a job. `is_held`: one of its processes lives."""
    if end is not None:
        return "stopped" if end.stopped else "failed" if end.code else "done"
    if not is_held:
        return "lost"
    return "waiting" if process is None else "running"


def holds_lock(path: Path) -> bool:
    """Return whether a process holds the lock of a job. It is released when the last process that has it ends, however it ends."""
    try:
        descriptor = folder_handles.open_file(path, os.O_RDONLY)
    except (OSError, UserError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_process(number: int, started: float) -> bool:
    """Return whether a process still lives, and is the one that started at this time."""
    with contextlib.suppress(psutil.Error, ValueError, OverflowError):
        process = psutil.Process(number)
        return abs(process.create_time() - started) < 2 and process.status() != psutil.STATUS_ZOMBIE
    return False


def identify_process(number: int) -> tuple[int, float]:
    """Return the number and the start time of a process; without a start time if it has ended."""
    with contextlib.suppress(psutil.Error):
        return number, psutil.Process(number).create_time()
    return number, 0.0


def write_record(path: Path, record: BaseModel) -> None:
    """Write a record of a job."""
    files.write_json(path, record.model_dump(mode="json"))


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        return kind.model_validate(strict_json.loads(read_file(path, LARGEST_RECORD)))
    except (OSError, UserError, ValueError):  # pydantic's error is a ValueError
        return None


def read_file(path: Path, most: int) -> bytes:
    """Return the last bytes of a file of a job, `most` at most. Raises `OSError`, and `UserError` for a link or what is not a file."""
    with os.fdopen(folder_handles.open_file(path, os.O_RDONLY), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)
