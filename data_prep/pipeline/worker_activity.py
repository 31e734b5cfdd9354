"""Messages of a worker to the parent process about the step that it works on, and the format of their times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from overtone.data_prep.parallel import process_pool


@dataclass(frozen=True)
class Activity:
    """Current work of a worker on a recording, sent to the parent while one step takes long."""

    step: str
    seconds: float
    """Seconds of the recording done so far in this step."""


def report_activity(step: str, seconds: float) -> None:
    """Send an `Activity` to the parent."""
    process_pool.send_progress(Activity(step, seconds))


def format_time(seconds: float) -> str:
    """Format seconds as `1:02:03`."""
    return str(timedelta(seconds=round(seconds)))
