"""The page of a voice dataset: codes, report, review, and what stricter rules would remove."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from overtone.data_prep.cli.report import PAGE as REPORT
from overtone.data_prep.clips.review_decisions import REVIEW
from overtone.data_prep.dataset.duration_accounting import Summary
from overtone.data_prep.manifest import SUMMARY
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import read_json
from overtone.finetune.pages.request_validation import Route
from overtone.studio.folder_content import find_inside
from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_commands import show_command
from overtone.studio.jobs.job_queue import repeat_job
from overtone.studio.jobs.job_records import JobCommand, StudioJob
from overtone.studio.models_at_hand import list_hub_models
from overtone.studio.page_interface import (
    Link,
    Page,
    Studio,
    accept_command,
    accept_json,
    answer_form,
    find_word,
    is_short,
    link_to,
    redirect_to,
)
from overtone.studio.pages.dataset_review import make_address as make_review_address
from overtone.studio.pages.train_page import list_local_models

CODECS = ("Qwen/Qwen3-TTS-12Hz-1.7B-Base", "sesame/csm-1b", "hubertsiuzdak/snac_24khz", "codec-demo")
"""Models that the field of the codec offers; it takes others, too."""


class DatasetForm(BaseModel, extra="forbid"):
    """The dataset alone."""

    folder: str


class CodesForm(BaseModel, extra="forbid"):
    """The settings of `overtone codes`."""

    folder: str
    model: str


def make_page(studio: Studio) -> Page:
    """Return the page."""

    def show(request: Request) -> Response:
        name = request.query_params.get("folder", "")
        folder = find_inside(studio.place, name)
        made_by = find_voice_job(studio.place, name)
        return studio.render(
            "voice_dataset.html",
            "",
            folder=name,
            report=link_to("Show the report", "/report", folder=name) if (folder / REPORT).is_file() else None,
            summary=read_summary(folder),
            codecs=[*CODECS, *list_local_models(studio.place), *(one for one in list_hub_models() if one not in CODECS)],
            has_codes=(folder / "codes").is_dir(),
            has_decisions=(folder / REVIEW).is_file(),
            made_by=made_by,
            train=link_to("Train", "/train", dataset=name),
            review=make_review_address(name),
            review_command=show_command("review", [name]),
        )

    def show_again(command: JobCommand, _: str) -> Response:
        return redirect_to("/voice/dataset", folder=find_word(command.words, "--out") or next(iter(command.words), ""))

    def build_stricter(form: DatasetForm) -> tuple[str, list[str]]:
        kept = list(require_voice_job(studio.place, form.folder).command.words)
        if "--preset" in kept:
            index = kept.index("--preset")
            del kept[index : index + 2]
        return "voice", [*kept, "--preset", "clean", "--dry-run"]

    commands = [
        accept_command(
            studio,
            "/voice/dataset/codes",
            CodesForm,
            lambda form: ("codes", [require_folder(studio, form.folder), "--model", form.model]),
            show_again,
        ),
        accept_command(
            studio, "/voice/dataset/report", DatasetForm, lambda form: ("report", [require_folder(studio, form.folder)]), show_again
        ),
        accept_command(studio, "/voice/dataset/stricter", DatasetForm, build_stricter, show_again),
    ]
    return Page(
        routes=(
            Route("GET", "/voice/dataset", query={"folder": is_short}),
            accept_json("/voice/dataset/apply", DatasetForm),
            *(route for routes, _ in commands for route in routes),
        ),
        endpoints=(
            Endpoint("/voice/dataset", show),
            answer_form(
                "/voice/dataset/apply",
                DatasetForm,
                lambda form, _: {"next": f"/job/{repeat_job(studio.place, require_voice_job(studio.place, form.folder))}"},
            ),
            *(endpoint for _, endpoints in commands for endpoint in endpoints),
        ),
        dataset_links=lambda one: (
            [link_to("Listen and check", "/voice/dataset", folder=str(one.folder.relative_to(studio.place)))] if one.kind == "voice" else []
        ),
        job_links=link_results,
    )


def read_summary(folder: Path) -> Summary | None:
    """Return what `overtone voice` wrote about a dataset; None if the file is another's."""
    try:
        return Summary.model_validate(read_json(folder / SUMMARY))
    except ValidationError:
        return None


def make_address(folder: str) -> str:
    """Return the address of the page of a dataset."""
    return link_to("", "/voice/dataset", folder=folder)[0]


def link_results(job: StudioJob) -> list[Link]:
    """Return where to go on from the jobs of this page."""
    words = job.command.words
    if job.command.verb == "codes" and words:
        return [(make_address(words[0]), "Back to the dataset")]
    if job.command.verb == "voice" and "--dry-run" in words:
        return [(make_address(find_word(words, "--out")), "Back to the dataset")]
    return []


def find_voice_job(place: Path, folder: str) -> StudioJob | None:
    """Return the last job of this user that has prepared a dataset; None if it was made in a terminal, or on another machine."""
    for id in reversed(job_records.list_ids(place)):
        job = job_records.read_job(place, id)
        if (
            job is not None
            and job.is_own
            and job.state == "done"  # the files are those of a job that ended, maybe of other recordings
            and job.command.verb == "voice"
            and "--dry-run" not in job.command.words
            and find_word(job.command.words, "--out") == folder
        ):
            return job
    return None


def require_voice_job(place: Path, folder: str) -> StudioJob:
    """Return the last job that prepared a dataset. Raises `UserError` if none did."""
    job = find_voice_job(place, folder)
    if job is None:
        raise UserError(f"{folder} was not made by a job of this studio, so that its settings are not known; run its command in a terminal")
    return job


def require_folder(studio: Studio, folder: str) -> str:
    """Return the path of a dataset. Raises `UserError` if it is none."""
    if not (find_inside(studio.place, folder) / SUMMARY).is_file():
        raise UserError(f"{folder} is no dataset; make one of recordings first")
    return folder
