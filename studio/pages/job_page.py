"""The page of a job: live state and log, stop and resume."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route as Endpoint

from overtone.finetune.pages.request_validation import RequestError, Route
from overtone.finetune.storage import files
from overtone.studio.jobs import job_queue, job_records
from overtone.studio.jobs.job_progress import LogFollower, clean_log, read_progress
from overtone.studio.jobs.job_records import ID, StopRequest, StudioJob
from overtone.studio.page_interface import FOLDER, JINJA, UNSTORED, Link, Page, Studio, accept_json, answer_form

SECONDS = 0.5
"""Time between two looks at a job."""
QUIET = 30
"""Looks without news after which a line is sent, so that a closed connection is noticed."""
LARGEST_LOG = 2**25
"""Bytes at the end of a log that are shown as a whole."""
FORM = re.compile(r"/[a-z]+(?:/[a-z]+)*")
"""Addresses of forms of the studio."""


class Nothing(BaseModel, extra="forbid"):
    """The body of a request that needs no settings."""


def make_page(studio: Studio) -> Page:
    """Return the page."""

    def show(request: Request) -> Response:
        job = find_job(studio, request.path_params["id"])
        return studio.render("job_page.html", "", job=job, progress=read_progress(job), actions=render_actions(studio, job))

    async def follow(request: Request) -> Response:
        job = await asyncio.to_thread(find_job, studio, request.path_params["id"])
        return StreamingResponse(stream_updates(studio, job), media_type="text/event-stream", headers=UNSTORED)

    def show_log(request: Request) -> Response:
        job = find_job(studio, request.path_params["id"])
        try:
            content = job_records.read_file(job.folder / job_records.LOG, LARGEST_LOG)
        except OSError:
            content = b""
        return PlainTextResponse(clean_log(content), headers=UNSTORED)

    def stop(form: StopRequest, found: Mapping[str, str]) -> dict[str, str]:
        with files.explain_write_errors(studio.place):
            job_queue.stop_job(find_job(studio, found["id"]), form.at_once)
        return {}

    def repeat(_: Nothing, found: Mapping[str, str]) -> dict[str, str]:
        with files.explain_write_errors(studio.place):
            return {"next": f"/job/{job_queue.repeat_job(studio.place, find_job(studio, found['id']))}"}

    return Page(
        routes=(
            *(Route("GET", rf"/job/{ID}{more}") for more in ("", "/events", "/log")),
            accept_json(rf"/job/{ID}/stop", StopRequest),
            accept_json(rf"/job/{ID}/repeat", Nothing),
        ),
        endpoints=(
            Endpoint("/job/{id}", show),
            Endpoint("/job/{id}/events", follow),
            Endpoint("/job/{id}/log", show_log),
            answer_form("/job/{id}/stop", StopRequest, stop),
            answer_form("/job/{id}/repeat", Nothing, repeat),
        ),
        assets=(FOLDER / "job_page.js",),
    )


def find_job(studio: Studio, id: str) -> StudioJob:
    """Return a job. Raises `RequestError` (404) if there is none with this id."""
    job = job_records.read_job(studio.place, id)
    if job is None:
        raise RequestError(404, f"there is no job {id}; its folder is gone", "unknown_job")
    return job


def render_actions(studio: Studio, job: StudioJob) -> str:
    """Return the buttons for what can be done with a job now."""
    links: list[Link] = [link for page in studio.pages for link in page.job_links(job)] if job.state == "done" else []
    shown = job if FORM.fullmatch(job.command.page) else replace(job, command=job.command.model_copy(update={"page": ""}))
    template: Any = JINJA.get_template("studio_templates.html").module
    return template.job_actions(shown, read_progress(job), links)


def describe_job(studio: Studio, job: StudioJob) -> dict[str, object]:
    """Return what the page's script shows of a job, without its log."""
    progress = read_progress(job)
    ahead = job_queue.list_ahead(studio.place, job.id, set()) if job.state == "waiting" else []
    text = f"waits for {len(ahead)} jobs" if len(ahead) > 1 else f"waits for {ahead[0].command.verb}" if ahead else progress.text
    template: Any = JINJA.get_template("studio_templates.html").module
    return {
        "state": str(template.state_mark("stopping" if job.is_active and job.stop else job.state)),
        "text": text,
        "share": progress.share,
        "active": job.is_active,
        "actions": str(render_actions(studio, job)),
    }


async def stream_updates(studio: Studio, job: StudioJob) -> AsyncIterator[str]:
    """Yield server-sent events: the state and the new lines of the log, until the job has ended."""
    follower, before, quiet, is_first = LogFollower(job), dict[str, object](), 0, True

    def look() -> dict[str, object]:
        current = describe_job(studio, find_job(studio, job.id))  # before the log, so that the last lines come with the end
        return {**current, "log": follower.read()}

    while True:
        update = await asyncio.to_thread(look)
        news = update["log"] is not None or {**update, "log": None} != before
        if news:
            yield f"data: {json.dumps({**update, 'first': is_first})}\n\n"
            before, is_first, quiet = {**update, "log": None}, False, 0
        elif (quiet := quiet + 1) % QUIET == 0:
            yield ": no news\n\n"
        if not update["active"]:
            return
        await asyncio.sleep(SECONDS)
