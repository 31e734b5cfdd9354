"""The pages that make a voice dataset of recordings: folders, consent, files, and the preparation with `overtone voice`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, StringConstraints
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from overtone.data_prep.transcription.demo_whisper import NAME as DEMO_WHISPER
from overtone.finetune.pages.request_validation import Route
from overtone.studio.folder_content import find_inside
from overtone.studio.jobs.job_records import JobCommand, StudioJob
from overtone.studio.models_at_hand import list_whispers
from overtone.studio.page_interface import (
    DATASETS,
    FOLDER,
    Link,
    Page,
    Studio,
    accept_command,
    accept_json,
    answer_form,
    find_free_name,
    find_word,
    flatten_options,
    is_short,
    link_to,
    name_dataset,
    read_options,
)
from overtone.studio.pages.folder_list import list_folders
from overtone.studio.uploads.speaker_consent import CONSENT, TEXTS, Ground, read_consent, write_consent
from overtone.studio.uploads.upload_folders import (
    RECORDINGS,
    count_recordings,
    has_transcripts,
    list_held_files,
)

LANGUAGES = ("en", "de", "es", "fr", "it", "pt", "ru", "zh", "ja", "ko")
"""Languages that the list offers; the field takes others, too."""
PRESETS = ("default", "clean", "keep-all")


class ConsentForm(BaseModel, extra="forbid"):
    """The consent for a folder."""

    folder: str
    who: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
    ground: Ground


class VoiceForm(BaseModel, extra="forbid"):
    """The settings of `overtone voice`."""

    folder: str
    name: str
    transcripts: Literal["yes", "no"]
    whisper: str = ""
    speaker: str = ""
    speakers: Literal["one", "folder", "transcript"] = "one"
    """The names of speakers are those of the form, of the sub-folders, or of the transcripts."""
    language: str = ""
    preset: Literal["default", "clean", "keep-all"] = "default"
    device: Literal["", "cpu", "cuda"] = ""
    again: str = ""
    """The dataset that a job has made, if its settings are changed; it is made again."""


def make_page(studio: Studio) -> Page:
    """Return the page."""

    def show_settings(command: JobCommand, _: str) -> Response:
        return render_folder(next(iter(command.words), ""), read_options(command.words))

    def render_folder(name: str, given: Mapping[str, str]) -> Response:
        folder = find_inside(studio.place, name)
        held, whispers = list_held_files(folder), list_whispers()
        return studio.render(
            "voice_folder.html",
            "",
            folder=name,
            consent=read_consent(folder),
            consent_file=CONSENT,
            grounds=TEXTS,
            held=held,
            recordings=count_recordings(held),
            given=given,
            name=Path(given["--out"]).name if "--out" in given else find_free_name(studio.place / DATASETS, folder.name),
            transcripts=has_transcripts(held),
            whispers=whispers,
            default_whisper=next((one for one in whispers if one != DEMO_WHISPER), "small"),
            languages=LANGUAGES,
            presets=PRESETS,
            microphone=link_to("", "/voice/microphone", folder=name)[0],
        )

    def give_consent(form: ConsentForm, _: Mapping[str, str]) -> dict[str, str]:
        write_consent(find_inside(studio.place, form.folder), form.who, form.ground)
        return {"next": link_to("", "/voice/folder", folder=form.folder)[0]}

    folders = list_folders(studio, "/voice", RECORDINGS, "Recordings", "New voice", "recordings")
    routes, endpoints = accept_command(studio, "/voice/prepare", VoiceForm, lambda form: build_command(studio, form), show_settings)
    return Page(
        routes=(
            *folders[0],
            Route("GET", "/voice/folder", query={"folder": is_short}),
            accept_json("/voice/consent", ConsentForm),
            *routes,
        ),
        endpoints=(
            *folders[1],
            Endpoint("/voice/folder", lambda request: render_folder(request.query_params.get("folder", ""), {})),
            answer_form("/voice/consent", ConsentForm, give_consent),
            *endpoints,
        ),
        assets=(FOLDER / "voice_folder.js",),
        label="Recordings",
        beginnings=(("/voice", "New voice"),),
        job_links=link_dataset,
    )


def build_command(studio: Studio, form: VoiceForm) -> tuple[str, list[str]]:
    """Return the command that prepares the recordings. Raises `UserError` for what is no folder, and a name that cannot be one."""
    find_inside(studio.place, form.folder)
    words = [form.folder, "--out", name_dataset(studio.place, form.name, form.again)]
    words += ["--transcripts"] if form.transcripts == "yes" else ["--whisper", form.whisper or "small"]
    if form.speakers == "one":
        words += flatten_options([("speaker", form.speaker)])
    else:
        words += ["--speaker-from", form.speakers]
    preset = None if form.preset == "default" else form.preset
    return "voice", words + flatten_options([("language", form.language), ("preset", preset), ("device", form.device)])


def link_dataset(job: StudioJob) -> list[Link]:
    """Return the link to the dataset that a job has made."""
    words = job.command.words
    made = find_word(words, "--out") if job.command.verb == "voice" and "--dry-run" not in words else ""
    return [link_to("Open the dataset", "/voice/dataset", folder=made)] if made else []
