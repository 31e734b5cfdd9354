"""The page of a run: curves, samples, checkpoints and settings; two runs over each other."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route as Endpoint

from overtone.finetune.cli.list_runs import describe_best, describe_state
from overtone.finetune.config_diff import find_changes, flatten
from overtone.finetune.config_sources import read_config_file
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import CHECKPOINTS, LOG, iterate_events
from overtone.finetune.monitoring.run_summary import LONGEST_LINE, RunSummary, summarize_run
from overtone.finetune.pages.request_validation import RequestError, Route
from overtone.studio.folder_content import find_content, find_file, find_inside
from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_records import StudioJob
from overtone.studio.jobs.job_runner import find_run_folder
from overtone.studio.loss_chart import draw_chart, draw_loss, read_curves
from overtone.studio.page_interface import FOLDER, JINJA, UNSTORED, Link, Page, Studio, is_short, link_to

SOUNDS = {".wav": "audio/wav", ".flac": "audio/flac", ".ogg": "audio/ogg", ".mp3": "audio/mpeg"}
MOST_SAMPLES = 60
STEP = "step-"
"""Prefix of the name of a checkpoint's folder."""


def make_page(studio: Studio) -> Page:
    """Return the page."""
    template: Any = JINJA.get_template("run_parts.html").module

    def show(request: Request) -> Response:
        run = find_inside(studio.place, request.query_params.get("run", ""))
        values = describe_run(studio, run)
        if request.url.path == "/run/live":
            return HTMLResponse(template.live_part(**values), headers=UNSTORED)
        others = [str(one.relative_to(studio.place)) for one in find_content(studio.place).runs if one != run]
        return studio.render("run_page.html", "/run", others=others, live=template.live_part(**values), **values)

    def compare(request: Request) -> Response:
        names = [request.query_params.get(side, "") for side in ("run", "other")]
        first, second = (find_inside(studio.place, name) for name in names)
        runs = {name: read_curves(run) for name, run in zip(names, (first, second), strict=True)}
        return studio.render(
            "compare_page.html",
            "/run",
            names=names,
            charts=[draw_loss(runs), draw_chart("Learning rate", {name: [*one.rates.items()] for name, one in runs.items()})],
            changes=find_changes(read_settings(first), read_settings(second)),
        )

    def play(request: Request) -> Response:
        sound = find_file(find_inside(studio.place, request.query_params.get("run", "")), request.query_params.get("file", ""), SOUNDS)
        if sound is None:
            raise RequestError(404, "there is no such sound in this run", "unknown_url")
        return FileResponse(sound, media_type=SOUNDS[sound.suffix])

    def offer(run: RunSummary) -> Sequence[Link]:
        return [link_to("Curves", "/run", run=str(run.folder.relative_to(studio.place)))]

    query = {"run": is_short}
    return Page(
        routes=(
            Route("GET", "/run", query=query),
            Route("GET", "/run/live", query=query),
            Route("GET", "/run/compare", query={**query, "other": is_short}),
            Route("GET", "/run/sound", query={**query, "file": is_short}),
        ),
        endpoints=(
            Endpoint("/run", show),
            Endpoint("/run/live", show),
            Endpoint("/run/compare", compare),
            Endpoint("/run/sound", play),
        ),
        assets=(FOLDER / "run_page.js",),
        run_links=offer,
        job_links=lambda job: [link_to("Curves and samples", "/run", run=run)] if (run := find_trained_run(job)) else [],
    )


def find_trained_run(job: StudioJob) -> str | None:
    """Return the folder of the run that a job trains, relative to the studio's; None for other jobs."""
    return find_run_folder(job.command.words) if job.command.verb == "train" else None


def describe_run(studio: Studio, run: Path) -> dict[str, Any]:
    """Return the values of the templates for a run."""
    name, summary, curves = str(run.relative_to(studio.place)), summarize_run(run), read_curves(run)
    return {
        "name": name,
        "run": summary,
        "state": describe_state(summary),
        "best": describe_best(summary),
        "charts": [draw_loss({name: curves}), draw_chart("Learning rate", {"learning rate": [*curves.rates.items()]})],
        "samples": list_samples(run),
        "steps": [int(path.name.removeprefix(STEP)) for path in list_checkpoints(run)],
        "settings": flatten(read_settings(run)),
        "jobs": [job for job in job_records.list_jobs(studio.place) if find_trained_run(job) == name],
    }


def list_samples(run: Path) -> list[tuple[int, str, str, str]]:
    """Return (step, prompt, answer, path of the sound or empty) of the newest samples of a run, the newest first."""
    found = list[tuple[int, str, str, str]]()
    with contextlib.suppress(OSError):
        for event in iterate_events(run / LOG, LONGEST_LINE):
            answers = event.get("answers") if event["event"] == "sampled" else None
            for one in answers if isinstance(answers, list) else []:
                if isinstance(one, dict):
                    prompt, answer, sound = (str(one.get(key, "")) for key in ("prompt", "answer", "sound"))
                    found.append((event["step"], prompt, answer, sound))
    return found[: -MOST_SAMPLES - 1 : -1]


def list_checkpoints(run: Path) -> list[Path]:
    """Return the folders of the checkpoints of a run, the oldest first. Links are left out."""
    found = [path for path in (run / CHECKPOINTS).glob(f"{STEP}*") if path.name.removeprefix(STEP).isdecimal() and not path.is_symlink()]
    return sorted(path for path in found if (path / "config.yaml").is_file())


def read_settings(run: Path) -> Mapping[str, JsonValue]:
    """Return the config of the newest checkpoint of a run; empty without one."""
    saved = list_checkpoints(run)
    with contextlib.suppress(UserError):
        if saved:
            return read_config_file(saved[-1] / "config.yaml").values
    return {}
