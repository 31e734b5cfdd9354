"""The pages that make a chat dataset of files: folders, uploads, and the preparation with `overtone text`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from overtone.data_prep.chats.conversation_formats import SHAPES
from overtone.finetune.pages.request_validation import Route
from overtone.studio.folder_content import find_inside
from overtone.studio.jobs.job_records import JobCommand, StudioJob
from overtone.studio.page_interface import (
    DATASETS,
    FOLDER,
    Link,
    Page,
    Studio,
    accept_command,
    find_free_name,
    find_word,
    flatten_options,
    is_short,
    link_to,
    name_dataset,
    read_options,
)
from overtone.studio.pages.folder_list import list_folders
from overtone.studio.uploads.upload_folders import CHATS, list_held_files


class ChatForm(BaseModel, extra="forbid"):
    """The settings of `overtone text`."""

    folder: str
    name: str
    rows: Literal["chats", "pairs", "labels", "raw"] = "chats"
    shape: str = ""
    columns: str = ""
    person: str = ""
    """The person whose messages are the answers, in chats that WhatsApp exported."""
    join_turns: bool = False
    val_share: str = ""
    again: str = ""
    """The dataset that a job has made, if its settings are changed; it is made again."""


def make_page(studio: Studio) -> Page:
    """Return the page."""

    def show_settings(command: JobCommand, _: str) -> Response:
        return render_folder(next(iter(command.words), ""), command.words)

    def render_folder(name: str, words: list[str]) -> Response:
        given, folder = read_options(words), find_inside(studio.place, name)
        return studio.render(
            "chat_folder.html",
            "",
            folder=name,
            held=list_held_files(folder),
            shapes=SHAPES,
            given=given,
            name=Path(given["--out"]).name if "--out" in given else find_free_name(studio.place / DATASETS, folder.name),
        )

    folders = list_folders(studio, "/chats", CHATS, "Chats", "New assistant", "files")
    routes, endpoints = accept_command(studio, "/chats/prepare", ChatForm, lambda form: build_command(studio.place, form), show_settings)
    return Page(
        routes=(
            *folders[0],
            Route("GET", "/chats/folder", query={"folder": is_short}),
            *routes,
        ),
        endpoints=(
            *folders[1],
            Endpoint("/chats/folder", lambda request: render_folder(request.query_params.get("folder", ""), [])),
            *endpoints,
        ),
        assets=(FOLDER / "chat_folder.js",),
        label="Chats",
        beginnings=(("/chats", "New assistant"),),
        job_links=link_dataset,
    )


def build_command(place: Path, form: ChatForm) -> tuple[str, list[str]]:
    """Return the command that reads the files. Raises `UserError` for what is no folder, and a name that cannot be one."""
    find_inside(place, form.folder)
    words = [form.folder, "--out", name_dataset(place, form.name, form.again)]
    kinds = {"chats": [], "pairs": ["--rows", "pairs"], "labels": ["--rows", "labels"], "raw": ["--raw"]}
    options = [("shape", form.shape), ("columns", form.columns), ("as", form.person), ("val-share", form.val_share)]
    return "text", [*words, *kinds[form.rows], *flatten_options(options), *(["--join-turns"] if form.join_turns else [])]


def link_dataset(job: StudioJob) -> list[Link]:
    """Return the link to the dataset that a job has made or read."""
    made = find_word(job.command.words, "--out") if job.command.verb == "text" else ""
    return [link_to("Open the dataset", "/chats/dataset", folder=made)] if made else []
