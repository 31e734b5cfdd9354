"""The parts of a page of the studio, and functions for all pages."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment
from pydantic import BaseModel, JsonValue
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route as Endpoint

from overtone.finetune.cli.list_runs import ExportSummary, describe_bytes
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_summary import RunSummary
from overtone.finetune.pages.jinja_environment import make_environment
from overtone.finetune.pages.request_validation import LARGEST_JSON, RequestError, Route, parse_body
from overtone.finetune.storage import files
from overtone.finetune.terminal import printable
from overtone.studio.folder_content import DatasetSummary
from overtone.studio.jobs.job_commands import check_command, show_command
from overtone.studio.jobs.job_queue import require_own, start_job
from overtone.studio.jobs.job_records import ID, JobCommand, StudioJob, read_job

Form = TypeVar("Form", bound=BaseModel)
FOLDER = Path(__file__).parent / "pages"
UNSTORED = {"cache-control": "no-store"}
"""Header of responses that change with the folder."""
DATASETS = "data"
"""Folder of the datasets that the studio makes."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""Names of new datasets, runs and exports."""


Endpoints = tuple[tuple[Route, ...], tuple[Endpoint, ...]]
"""Requests that the guard admits, and the functions that answer them."""
Link = tuple[str, str]
"""Address and label."""


def no_links(_: object) -> Sequence[Link]:
    """For a page that offers nothing for this kind of folder."""
    return ()


@dataclass(frozen=True)
class Page:
    """The requests of one page."""

    routes: tuple[Route, ...]
    """Requests that the guard admits."""
    endpoints: tuple[Endpoint, ...]
    """The functions that answer them."""
    assets: tuple[Path, ...] = ()
    """Scripts of the page, served below `/assets/`; their names are unique."""
    label: str = ""
    """Name in the navigation, which leads to the path of the first route; empty: not there."""
    beginnings: tuple[Link, ...] = ()
    """Links to what a person can begin, for home."""
    dataset_links: Callable[[DatasetSummary], Sequence[Link]] = no_links
    run_links: Callable[[RunSummary], Sequence[Link]] = no_links
    export_links: Callable[[ExportSummary], Sequence[Link]] = no_links
    """Returns links for a dataset, a run or an export in the lists at home."""
    job_links: Callable[[StudioJob], Sequence[Link]] = no_links
    """Returns links for a job that is done."""


@dataclass(frozen=True)
class Studio:
    """The folder and the settings of one studio, for all pages."""

    place: Path
    """The folder that the studio shows, without links."""
    host: str
    """Address that it listens on; servers that it starts listen there, too."""
    pages: list[Page] = field(default_factory=list)
    """All pages; complete before the first request."""

    def render(self, template: str, path: str, **values: Any) -> Response:
        """Return a page. `path`: of the page in the navigation."""
        navigation = [(page.routes[0].path, page.label) for page in self.pages if page.label]
        text = JINJA.get_template(template).render(place=self.place, navigation=navigation, here=path, **values)
        # A name that is not UTF-8 has half characters; it is shown with their numbers.
        return HTMLResponse(text.encode("utf-8", "backslashreplace"), headers=UNSTORED)


def format_age(then: float) -> str:
    """Format a time in seconds since the epoch as `now`, `5 min`, `3 h` or `12 days` ago."""
    seconds = time.time() - then
    for unit, size in (("day", 86400), ("h", 3600), ("min", 60)):
        if (count := int(seconds // size)) >= 1:
            return f"{count} {unit}{'s' if unit == 'day' and count > 1 else ''} ago"
    return "now"


def make_jinja() -> Environment:
    """Return the environment of the studio's templates."""
    jinja = make_environment(FOLDER)
    jinja.filters |= {"bytes": describe_bytes, "age": format_age, "command": lambda one: show_command(one.verb, one.words)}
    jinja.filters["target"] = find_target
    # Names of files in other encodings have half characters, which cannot be part of an address.
    jinja.tests["utf8"] = lambda name: not any("\ud800" <= character <= "\udfff" for character in name)
    return jinja


def find_target(command: JobCommand) -> str:
    """Return the folder or file that a command writes, for its name in a list; else its first word."""
    for flag in ("--run.dir", "--out", "--to"):
        if found := find_word(command.words, flag):
            return printable(found[:80])
    return printable(command.words[0][:80]) if command.words and not command.words[0].startswith("--") else ""


JINJA = make_jinja()


def accept_json(path: str, kind: type[BaseModel]) -> Route:
    """Return the route of a POST with a JSON body of this kind."""
    return Route("POST", path, largest=LARGEST_JSON, check=lambda body: parse_body(kind, body).model_dump(mode="json"))


def answer_form(path: str, kind: type[Form], act: Callable[[Form, Mapping[str, str]], dict[str, str]]) -> Endpoint:
    """Return the endpoint of a POST. `act(form, parameters of the path)` returns what the script gets: `next`, the address of the page to
    show, or what it shows. Its `UserError` becomes the response."""

    async def receive(request: Request) -> Response:
        form = kind.model_validate(await request.json())
        return JSONResponse(await run_in_threadpool(act, form, request.path_params))

    return Endpoint(path, receive, methods=["POST"])


def accept_command(
    studio: Studio,
    path: str,
    kind: type[Form],
    build: Callable[[Form], tuple[str, list[str]]],
    show: Callable[[JobCommand, str], Response],
) -> Endpoints:
    """Return the routes and endpoints of a form that starts a verb: POST `path` starts it as a job and leads to the job's page, POST
    `path/command` returns the command alone, as `command`, or as `detail` what is wrong or missing, and GET `path?from=ID` is the page that
    changes the settings of a job.

    `build`: returns the verb and its words. `show(command, id)`: returns that page for a job.
    """

    def start(form: Form, _: Mapping[str, str]) -> dict[str, str]:
        with files.explain_write_errors(studio.place):
            return {"next": f"/job/{start_job(studio.place, *build(form), path)}"}

    def preview(form: Form, _: Mapping[str, str]) -> dict[str, str]:
        try:
            verb, words = build(form)
            check_command(studio.place, verb, words)
        except UserError as error:  # no error of the request: a form that somebody fills in has no command yet
            return {"command": "", "detail": str(error)}
        return {"command": show_command(verb, words)}

    def change(request: Request) -> Response:
        id = request.query_params.get("from", "")
        return show(find_own_job(studio.place, id).command, id)

    routes = Route("GET", path, query={"from": is_job}), accept_json(path, kind), accept_json(f"{path}/command", kind)
    endpoints = Endpoint(path, change), answer_form(path, kind, start), answer_form(f"{path}/command", kind, preview)
    return routes, endpoints


def find_own_job(place: Path, id: str) -> StudioJob:
    """Return the job whose settings a page changes. Raises `RequestError` if there is none, and `UserError` for a job of somebody else,
    whose words the page would show as the user's own."""
    job = read_job(place, id)
    if job is None:
        raise RequestError(404, f"there is no job {id}; its folder is gone", "unknown_job")
    require_own(job)
    return job


def find_word(words: Sequence[str], flag: str) -> str:
    """Return the value of an option among the words of a command; empty if it is not there."""
    return words[words.index(flag) + 1] if flag in words[:-1] else ""


def read_options(words: Sequence[str]) -> dict[str, str]:
    """Return flag → value of the options among the words of a command, written as `--KEY VALUE` or `--KEY=VALUE`; a switch has an empty
    value."""
    found = dict[str, str]()
    for word, after in zip(words, [*words, "--"][1:], strict=True):
        flag, equal, value = word.partition("=")
        if flag.startswith("--"):
            found[flag] = value if equal else "" if after.startswith("--") else after
    return found


def is_job(text: str) -> bool:
    """Return whether a text of a page's address has the form of a job's id."""
    return re.fullmatch(ID, text) is not None


def link_to(label: str, path: str, **query: str) -> Link:
    """Return the link to a page of the studio."""
    return f"{path}?{urlencode(query)}", label


def redirect_to(path: str, **query: str) -> Response:
    """Return the response that leads to another page of the studio."""
    return RedirectResponse(link_to("", path, **query)[0], 303)


def require_name(what: str, name: str) -> str:
    """Return the name of a new folder. Raises `UserError` for one that is not plain letters, digits, `.`, `-` and `_`."""
    if not NAME.fullmatch(name):
        raise UserError(f"{what}: {name[:80]!r} is no name; use letters, digits, '.', '-' and '_', and begin with a letter or digit")
    return name


def name_dataset(place: Path, name: str, again: str) -> str:
    """Return the folder of a new dataset, relative to `place`. `again`: the dataset whose settings were changed, which is made again.
    Raises `UserError` for a name that cannot be one, and for that of another dataset, which the command would replace."""
    folder = f"{DATASETS}/{require_name('dataset', name)}"
    if folder != again and os.path.lexists(place / folder):
        raise UserError(f"{folder} exists already; choose another name, or “Change settings” on the page of the job that made it")
    return folder


def find_free_name(folder: Path, name: str, ending: str = "") -> str:
    """Return a plain name for a new folder, or a file with this ending, that nothing in `folder` has."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "new"
    name, number = plain, 1
    while any(os.path.lexists(folder / f"{name}{one}") for one in {"", ending}):
        number += 1
        name = f"{plain}-{number}"
    return name


def is_short(text: str) -> bool:
    """Return whether a text of a page's address has at most 500 characters, and no null character."""
    return len(text) <= 500 and "\0" not in text


def flatten_options(options: Sequence[tuple[str, JsonValue]]) -> list[str]:
    """Return the words of `--KEY VALUE` for each option that has a value; of one that begins with a dash `--KEY=VALUE`, since a parser
    would read it as a flag."""
    texts = [(f"--{key}", str(value)) for key, value in options if value not in (None, "")]
    return [word for flag, value in texts for word in ([f"{flag}={value}"] if value.startswith("-") else [flag, value])]
