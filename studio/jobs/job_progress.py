"""Reads how far a job is from its log: the last line that says so, the share that is done, and the error that ended it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from overtone.finetune.errors import UserError
from overtone.finetune.storage import folder_handles
from overtone.finetune.terminal import make_safe
from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_commands import SERVERS
from overtone.studio.jobs.job_records import StudioJob

FORMATS = (
    re.compile(r"step (?P<done>\d{1,12})/(?P<total>\d{1,12})  .*\b\d+ s left"),
    re.compile(r"\[(?P<done>\d{1,12})/(?P<total>\d{1,12})\] .*\b(?:\d+ days?, )?\d+:\d\d:\d\d left(?: · rejected for: .*)?"),
    re.compile(r"indexing .*: (?P<done>\d{1,3})%, [\d,]+ s left"),
)
"""Whole lines of progress: of a training, of recordings, and of the index of a file of rows."""
LATEST = 8
"""Lines at the end among which the progress is; after more lines the job does something else."""
LONGEST = 300
"""Characters of a line that a list shows."""


@dataclass(frozen=True)
class JobProgress:
    """The progress of a job."""

    text: str
    """For a running job the last line with the time left, or the last line; for a failed one its error."""
    share: float | None
    """Share that is done, from 0 to 1; None if the log does not say."""
    address: str
    """Address of the page of a running server; empty for other jobs."""


def read_progress(job: StudioJob) -> JobProgress:
    """Return the progress of a job by the end of its log."""
    try:
        lines = clean_log(job_records.read_file(job.folder / job_records.LOG, job_records.TAIL)).split("\n")
    except (OSError, UserError):
        return JobProgress("", None, "")
    lines = [line for line in lines if line.strip() and not line.startswith("$ ")]
    if job.state in ("failed", "lost"):
        text = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")
        if not text and job.state == "lost":
            text = "Its processes were killed, or the machine was restarted; start it again"
        return JobProgress(text[:LONGEST] or f"It ended with exit code {job.end.code if job.end else 'unknown'}", None, "")
    if job.state != "running":
        return JobProgress(lines[-1][:LONGEST] if lines else "", 1.0 if job.state == "done" else None, "")
    shares = [(line, share) for line in lines[: -LATEST - 1 : -1] if (share := find_share(line)) is not None]
    line, share = shares[0] if shares else (lines[-1] if lines else "", None)
    return JobProgress(line[:LONGEST], share, find_address(job, lines))


def find_share(line: str) -> float | None:
    """Return the share that a line of progress states; None for other lines, also for those that only contain such numbers."""
    found = next((found for form in FORMATS if (found := form.fullmatch(line)) is not None), None)
    if found is None:
        return None
    done, total = int(found["done"]), int(found.groupdict().get("total", 100))
    return done / total if done <= total and total else None


def find_address(job: StudioJob, lines: list[str]) -> str:
    """Return the address that a server has printed; empty if it is not ready, or for another verb."""
    if job.command.verb in SERVERS:
        for line in lines:
            if found := re.match(rf"{job.command.verb}: (http://[0-9A-Za-z.:\[\]-]+)", line):
                return found[1]
    return ""


def clean_log(content: bytes) -> str:
    """Return a part of a log as text: of a line that was written several times, as a progress bar is, its last state; and control
    characters as escape sequences."""
    lines = content.decode("utf-8", "replace").split("\n")
    return "\n".join(make_safe(next((part for part in reversed(line.split("\r")) if part), "")) for line in lines)


class LogFollower:
    """Reads what is appended to the log of a job."""

    def __init__(self, job: StudioJob) -> None:
        self._path, self._offset = job.folder / job_records.LOG, -1
        self._rest = b""

    def read(self) -> tuple[str, str] | None:
        """Return (new whole lines, the line that is not whole yet), at first from the end of the log; None without news."""
        try:
            with os.fdopen(folder_handles.open_file(self._path, os.O_RDONLY), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                start = max(0, size - job_records.TAIL, self._offset)
                if start > self._offset >= 0:  # more than anybody reads was written since
                    self._rest = b""
                file.seek(start)
                content = file.read(job_records.TAIL)
        except (OSError, UserError):
            return None
        is_first, self._offset = self._offset < 0, start + len(content)
        if not content and not is_first:
            return None
        whole, _, self._rest = (self._rest + content).rpartition(b"\n")
        return (clean_log(whole) + "\n" if whole else "", clean_log(self._rest))
