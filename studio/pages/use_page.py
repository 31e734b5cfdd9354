"""The page of a model: speak or answer, serve it, and code that calls it."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route as Endpoint

from overtone.finetune.cli.list_runs import ExportSummary, summarize_export
from overtone.finetune.errors import UserError
from overtone.finetune.pages.request_validation import RequestError, Route, is_loopback
from overtone.finetune.pages.web_server import require_free_port
from overtone.finetune.recipe import built_in_recipes, find_recipe
from overtone.finetune.recipe.discovery import load_inference
from overtone.studio.folder_content import find_file, find_inside, list_validation
from overtone.studio.jobs.job_records import JobCommand, StudioJob
from overtone.studio.models_at_hand import list_whispers
from overtone.studio.page_interface import (
    Endpoints,
    Form,
    Link,
    Page,
    Studio,
    accept_command,
    find_free_name,
    find_word,
    flatten_options,
    is_short,
    link_to,
    read_options,
    require_name,
)
from overtone.studio.pages.choose_page import can_speak
from overtone.studio.pages.dataset_report import EVALUATION
from overtone.studio.pages.run_page import SOUNDS

FORMS = ("speak", "answer", "evaluate", "serve", "push")
SPOKEN, EVALUATIONS = Path("speech"), Path("evaluations")
FIRST_PORT, LAST_PORT = 7861, 7960
MOST_SOUNDS = 50


class GenerateForm(BaseModel, extra="forbid"):
    """The settings of `overtone generate`."""

    model: str
    text: str = ""
    """The text to speak, or the prompt to answer."""
    text_file: str = ""
    """A file with one text per line, in place of `text`."""
    name: str = ""
    """Name of the sound, or of the folder of sounds."""
    speaker: str = ""
    system: str = ""
    max_new_tokens: str = ""


class EvaluateForm(BaseModel, extra="forbid"):
    """The settings of `overtone eval-voice`."""

    model: str
    data: str
    asr: str
    name: str


class ServeForm(BaseModel, extra="forbid"):
    """The settings of `overtone serve`."""

    model: str
    port: str
    base: str = ""
    """A second model, to compare the first with."""
    blind: str = ""
    """A file of texts for a blind comparison of the two."""


class PushForm(BaseModel, extra="forbid"):
    """The settings of an upload with `overtone export`."""

    model: str
    repository: str = ""
    """Its name on the hub."""
    private: bool = False


def make_page(studio: Studio) -> Page:
    """Return the page."""

    def render(name: str, changed: str = "", words: Sequence[str] = ()) -> Response:
        """Show a model; the form `changed` has the values of these words of its command."""
        model, given = find_inside(studio.place, name), read_options(words)
        summary = summarize_export(model)
        out, port = Path(given.get("--out", "")).name.removesuffix(".wav"), given.get("--port", "")
        return studio.render(
            "use_page.html",
            "/use",
            name=str(model.relative_to(studio.place)),
            recipe=summary.recipe,
            speaks=can_speak(summary.recipe),
            chats=can_chat(summary.recipe),
            **{one: defaultdict(str, given if one == changed else {}) for one in FORMS},
            port=port if is_port(port) else find_free_port(),
            texts=list_files(studio.place, (".txt", ".jsonl")),
            sounds=list_newest(studio.place / SPOKEN)[:MOST_SOUNDS],
            sound_name=find_free_name(studio.place / SPOKEN, out if changed == "speak" else "speech", ".wav"),
            evaluation=find_free_name(studio.place / EVALUATIONS, out if changed == "evaluate" else "evaluation"),
            source=summary.source,
            data=list_validation(studio.place),
            whispers=list_whispers(),
            is_local=studio.host == "localhost" or is_loopback(studio.host),
            model_id=model.name,
        )

    def play(request: Request) -> Response:
        spoken = studio.place / SPOKEN
        path = None if spoken.is_symlink() else find_file(spoken, request.query_params.get("file", ""), SOUNDS)
        if path is None:
            raise RequestError(404, "there is no such sound; reload the page", "unknown_url")
        return FileResponse(path, media_type=SOUNDS[path.suffix])

    def offer(export: ExportSummary) -> Sequence[Link]:
        return [link_to("Use", "/use", model=str(export.folder.relative_to(studio.place)))]

    def offer_after(job: StudioJob) -> Sequence[Link]:
        verb, words = job.command.verb, job.command.words
        if verb == "eval-voice" and (out := find_word(words, "--out")):
            return [link_to("Show the evaluation", "/report", folder=out, page=EVALUATION)]
        if verb == "export" and "--push-to-hub" in words and "--to" not in words:
            return [link_to("Back to the model", "/use", model=words[0])]
        flag, label = {"export": ("--to", "Use the model"), "generate": ("--model", "Back to the model")}.get(verb, ("", ""))
        return [link_to(label, "/use", model=model)] if (model := find_word(words, flag)) else []

    def accept(name: str, kind: type[Form], verb: str, list_words: Callable[[Path, Form], list[str]]) -> Endpoints:
        """Return the requests of the form `name`, of which an upload alone names the model without a flag."""

        def show_again(command: JobCommand, _: str) -> Response:
            return render(find_word(command.words, "--model") or next(iter(command.words), ""), name, command.words)

        return accept_command(studio, f"/use/{name}", kind, lambda form: (verb, list_words(studio.place, form)), show_again)

    forms = (
        accept("speak", GenerateForm, "generate", partial(list_generate_words, speaks=True)),
        accept("answer", GenerateForm, "generate", partial(list_generate_words, speaks=False)),
        accept("evaluate", EvaluateForm, "eval-voice", list_evaluation_words),
        accept("serve", ServeForm, "serve", list_server_words),
        accept("push", PushForm, "export", list_push_words),
    )
    return Page(
        routes=(
            Route("GET", "/use", query={"model": is_short}),
            Route("GET", "/use/sound", query={"file": is_short}),
            *(route for routes, _ in forms for route in routes),
        ),
        endpoints=(
            Endpoint("/use", lambda request: render(request.query_params.get("model", ""))),
            Endpoint("/use/sound", play),
            *(endpoint for _, endpoints in forms for endpoint in endpoints),
        ),
        export_links=offer,
        job_links=offer_after,
    )


def list_generate_words(place: Path, form: GenerateForm, speaks: bool) -> list[str]:
    """Return the words of `overtone generate` for a voice (`speaks`) or a chat model. Raises `UserError` for what is no model or name, and
    for no text or two."""
    find_inside(place, form.model)
    if bool(form.text.strip()) == bool(form.text_file):
        raise UserError("enter a text or choose a file, and not both")
    flag = "--text" if speaks else "--prompt"
    text = [f"{flag}-file", form.text_file] if form.text_file else [f"{flag}={form.text}"]  # a text may begin with a dash
    words = ["--model", form.model, *text]
    if not speaks:
        return [*words, *flatten_options([("system", form.system), ("max-new-tokens", form.max_new_tokens)])]
    name = require_name("name of the sound", form.name)
    return [*words, *flatten_options([("speaker", form.speaker)]), "--out", str(SPOKEN / (name if form.text_file else f"{name}.wav"))]


def can_chat(recipe: str) -> bool:
    """Return whether the exports of a recipe answer prompts; False as in `can_speak`."""
    return recipe in built_in_recipes() and load_inference(find_recipe(recipe)).chat is not None


def list_evaluation_words(place: Path, form: EvaluateForm) -> list[str]:
    """Return the words of `overtone eval-voice`. Raises `UserError` for what is no model or name, and for rows outside of the folder."""
    find_inside(place, form.model)
    if not (place / form.data).is_file():
        raise UserError(f"{form.data[:200]} is no file of rows in the studio's folder; choose one of the list")
    out = EVALUATIONS / require_name("name of the evaluation", form.name)
    return ["--model", form.model, "--data", form.data, *flatten_options([("asr", form.asr)]), "--out", str(out)]


def list_server_words(place: Path, form: ServeForm) -> list[str]:
    """Return the words of `overtone serve`. Raises `UserError` for what is no model or port."""
    find_inside(place, form.model)
    if not is_port(form.port):
        raise UserError(f"port {form.port[:20]!r}: give a port from {FIRST_PORT} to {LAST_PORT}")
    return ["--model", form.model, *flatten_options([("port", form.port), ("base", form.base), ("blind", form.blind)])]


def is_port(text: str) -> bool:
    """Return whether a text is a port of the studio's servers; the page writes it into commands to copy."""
    return re.fullmatch(r"[0-9]{4}", text) is not None and FIRST_PORT <= int(text) <= LAST_PORT


def list_push_words(place: Path, form: PushForm) -> list[str]:
    """Return the words of `overtone export` that upload an export. Raises `UserError` for what is no model, and without a repository."""
    find_inside(place, form.model)
    if not form.repository.strip():
        raise UserError("enter the name of the repository on the hub, as OWNER/MODEL")
    return [form.model, *flatten_options([("push-to-hub", form.repository.strip())]), *(["--private"] if form.private else [])]


def find_free_port() -> int:
    """Return the first port of the studio's servers that nobody uses. Raises `UserError` if all are taken."""
    for port in range(FIRST_PORT, LAST_PORT):
        try:
            require_free_port(port)
        except UserError:
            continue
        return port
    raise UserError(f"all ports from {FIRST_PORT} to {LAST_PORT} are in use; stop a server")


def list_newest(place: Path) -> list[str]:
    """Return the sounds in a folder, the newest first."""
    found = dict[str, float]()
    for name in list_files(place, tuple(SOUNDS)):
        with contextlib.suppress(OSError):  # removed meanwhile
            found[name] = (place / name).stat().st_mtime
    return sorted(found, key=lambda name: found[name], reverse=True)


def list_files(place: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Return files with these suffixes at most one folder deep, relative to `place`, sorted, without links and hidden ones."""
    found = list[str]()
    if place.is_symlink():
        return found
    for folder, inside, names in os.walk(place):
        below = Path(folder).relative_to(place)
        inside[:] = [name for name in inside if name[:1] != "."] if not below.parts else []
        chosen = [name for name in names if name.endswith(suffixes) and name[:1] != "." and not (Path(folder) / name).is_symlink()]
        found += [str(below / name) for name in chosen]
    return sorted(found)
