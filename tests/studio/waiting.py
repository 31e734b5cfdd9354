"""Waits for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_records import StudioJob

SECONDS = 120


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until the condition holds; fails after `SECONDS`."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def wait_for_end(place: Path, id: str) -> StudioJob:
    """Wait until a job has ended; returns it."""

    def read() -> StudioJob:
        job = job_records.read_job(place, id)
        assert job is not None
        return job

    wait_for(lambda: not read().is_active)
    return read()
