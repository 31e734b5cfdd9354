"""Home: what the folder holds, what this machine can train, and the jobs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route as Endpoint

from overtone.finetune.cli.list_runs import describe_best
from overtone.finetune.pages.request_validation import Route
from overtone.studio.folder_content import find_age, list_content
from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_progress import JobProgress, read_progress
from overtone.studio.jobs.job_queue import list_ahead
from overtone.studio.jobs.job_records import StudioJob
from overtone.studio.machine_summary import describe_machine
from overtone.studio.page_interface import FOLDER, JINJA, UNSTORED, Link, Page, Studio, format_age

SHOWN = 30
"""Jobs in the list; older ones that have ended stay in the folder."""


def make_page(studio: Studio) -> Page:
    """Return the page."""
    machine = MachineLine(studio.place)

    def show(_: Request) -> Response:
        content = list_content(studio.place)
        beginnings = [link for page in studio.pages for link in page.beginnings]
        return studio.render(
            "home_page.html",
            "/",
            name=studio.place.name or "/",
            machine=machine.read(),
            content=content,
            datasets=[(one, describe_folder(studio, one.folder), collect_links(studio, "dataset_links", one)) for one in content.datasets],
            runs=[(one, describe_folder(studio, one.folder), collect_links(studio, "run_links", one)) for one in content.runs],
            exports=[(one, describe_folder(studio, one.folder), collect_links(studio, "export_links", one)) for one in content.exports],
            beginnings=beginnings,
            describe_best=describe_best,
            jobs=list_rows(studio.place),
        )

    template: Any = JINJA.get_template("studio_templates.html").module
    return Page(
        routes=(Route("GET", "/"), Route("GET", "/jobs")),
        endpoints=(
            Endpoint("/", show),
            Endpoint("/jobs", lambda _: HTMLResponse(template.job_rows(list_rows(studio.place)), headers=UNSTORED)),
        ),
        assets=(FOLDER / "home_page.js",),
        label="Home",
    )


class MachineLine:
    """Owns the line about this machine, which is computed on a thread: a driver may take seconds to answer."""

    def __init__(self, place: Path) -> None:
        self._lines = list[str]()
        self._thread = threading.Thread(target=lambda: self._lines.append(describe_machine(place)), name="machine", daemon=True)
        self._thread.start()

    def read(self) -> str:
        """Return the line; waits a moment for it."""
        self._thread.join(0.3)
        return self._lines[0] if self._lines else "is being examined; reload the page"


def describe_folder(studio: Studio, folder: Path) -> tuple[str, str]:
    """Return the path of a folder relative to the studio's, and its age."""
    return str(folder.relative_to(studio.place)), format_age(find_age(folder))


def collect_links(studio: Studio, kind: str, one: object) -> list[Link]:
    """Return what all pages offer for a folder. `kind`: the field of `Page` that offers it."""
    return [link for page in studio.pages for link in getattr(page, kind)(one)]


def list_rows(place: Path) -> list[tuple[StudioJob, JobProgress, int]]:
    """Return the newest jobs, and older ones that have not ended, with their progress and the number of jobs before them, the newest
    first."""
    found = list[StudioJob]()
    for index, id in enumerate(reversed(job_records.list_ids(place))):
        if index >= SHOWN and (place / job_records.JOBS / id / job_records.EXIT).exists():
            continue  # most of the older ones: their records need not be read
        job = job_records.read_job(place, id)
        if job is not None and (index < SHOWN or job.is_active):
            found.append(job)
    return [(job, read_progress(job), len(list_ahead(place, job.id, set())) if job.state == "waiting" else 0) for job in found]
