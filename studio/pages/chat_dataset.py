"""The page of a chat dataset: how its files were read, its rows with what is learned of them, search, report and tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from overtone.data_prep import manifest
from overtone.data_prep.cli.report import PAGE as REPORT
from overtone.data_prep.manifest import REJECTS, SUMMARY, TRAIN, VAL
from overtone.data_prep.pages import chat_report
from overtone.data_prep.pages.chat_report import ReportRow, Turn
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import read_json
from overtone.finetune.pages.request_validation import Route
from overtone.studio.folder_content import find_inside
from overtone.studio.jobs.job_records import JobCommand, StudioJob
from overtone.studio.models_at_hand import list_hub_models
from overtone.studio.page_interface import Link, Page, Studio, accept_command, find_word, flatten_options, is_short, link_to, redirect_to
from overtone.studio.pages.train_page import list_local_models

ROWS = 10
"""Rows on a page."""
LONGEST = 4000
"""Characters of a message that are shown."""
PARTS = {"train": TRAIN, "val": VAL, "rejects": REJECTS}
COUNTS = {
    "sources": "Rows by file",
    "passed_over": "Files that are not read",
    "shapes": "Shapes of the rows",
    "keys_left_out": "Keys that are not read",
    "left_out_of_exported_chats": "Messages that are not read",
    "rows_with_invisible_characters": "Rows with invisible characters",
    "reasons": "Rejected rows",
}
"""The key of a table in summary.json → its title."""


class TokensForm(BaseModel, extra="forbid"):
    """The dataset, and the model whose tokens are shown."""

    folder: str
    model: str = Field(min_length=1)


class CountForm(BaseModel, extra="forbid"):
    """The dataset, and the model whose tokens are counted; empty for none."""

    folder: str
    model: str = ""


@dataclass(frozen=True)
class RowPage:
    """Some rows of a file."""

    rows: list[ReportRow]
    has_more: bool


def make_page(studio: Studio) -> Page:
    """Return the page."""

    def show(request: Request) -> Response:
        query = request.query_params
        name, part, search, number = (
            query.get("folder", ""),
            query.get("part", "train"),
            query.get("search", ""),
            int(query.get("page", "1")),
        )
        folder = find_inside(studio.place, name)
        found = read_page(folder / PARTS[part], search, number)

        def address(page: int, part: str = part, search: str = search) -> str:
            return link_to("", "/chats/dataset", folder=name, part=part, page=str(page), search=search)[0]

        return studio.render(
            "chat_dataset.html",
            "",
            folder=name,
            part=part,
            parts=[(one, address(1, one, "")) for one in PARTS if (folder / PARTS[one]).is_file()],
            search=search,
            number=number,
            found=found,
            before=address(number - 1) if number > 1 else "",
            after=address(number + 1) if found.has_more else "",
            longest=LONGEST,
            train=link_to("Train", "/train", dataset=name),
            tables=list_counts(read_json(folder / SUMMARY)),
            models=[*list_local_models(studio.place), *list_hub_models()],
            report=link_to("Show the report", "/report", folder=name) if (folder / REPORT).is_file() else None,
        )

    def show_again(command: JobCommand, _: str) -> Response:
        return redirect_to("/chats/dataset", folder=find_dataset(command))

    def build_tokens(form: TokensForm) -> tuple[str, list[str]]:
        rows = find_inside(studio.place, form.folder).relative_to(studio.place) / TRAIN
        words = ["--recipe", "llm_sft", "--model.source", form.model, "--data.train", str(rows), "--show-batch"]
        kind = read_json(studio.place / form.folder / SUMMARY).get("rows")
        if kind in ("pairs", "labels"):
            words[1] = "llm_dpo"
        if kind == "prompts":  # any reward, as the tokens of a prompt depend on none
            words[1:2] = ["llm_grpo", "--options.rewards.length.weight", "1"]
        return "plan", [*words, *(["--options.objective", "kto"] if kind == "labels" else [])]

    def build_report(form: CountForm) -> tuple[str, list[str]]:
        folder = find_inside(studio.place, form.folder).relative_to(studio.place)
        tokenizer = flatten_options([("tokenizer", form.model)])
        return "report", [str(folder), *tokenizer]

    tokens = accept_command(studio, "/chats/dataset/tokens", TokensForm, build_tokens, show_again)
    report = accept_command(studio, "/chats/dataset/report", CountForm, build_report, show_again)
    query = {
        "folder": is_short,
        "search": is_short,
        "part": PARTS.__contains__,
        "page": lambda text: re.fullmatch(r"[1-9][0-9]{0,8}", text, re.ASCII) is not None,
    }
    return Page(
        routes=(
            Route("GET", "/chats/dataset", query=query),
            *tokens[0],
            *report[0],
        ),
        endpoints=(Endpoint("/chats/dataset", show), *tokens[1], *report[1]),
        dataset_links=lambda one: (
            [link_to("Read the rows", "/chats/dataset", folder=str(one.folder.relative_to(studio.place)))] if one.kind == "chats" else []
        ),
        job_links=link_results,
    )


def read_page(path: Path, search: str, number: int) -> RowPage:
    """Return the rows of page `number`, from 1, among those that contain `search`, without regard to case. Raises `UserError` for a row
    that cannot be read."""
    if path.is_symlink():
        raise UserError(f"{path} is a link; the studio shows the files of its folder alone")
    wanted = search.casefold()
    found = (row for row in read_rows(path) if wanted in row.text.casefold())
    rows = list(islice(found, (number - 1) * ROWS, number * ROWS + 1))
    return RowPage(rows[:ROWS], len(rows) > ROWS)


def read_rows(path: Path) -> Iterator[ReportRow]:
    """Yield the rows of a file of a dataset; of rejects.jsonl the reasons."""
    if path.name != REJECTS:
        yield from chat_report.read_rows(path)
        return
    for number, row in manifest.read_lines(path) if path.is_file() else ():
        turns = tuple(Turn(key, str(row.get(key, "")), learned=False) for key in ("source", "reason"))
        yield ReportRow(f"{path.name}:{number}", turns)


def list_counts(summary: Mapping[str, object]) -> list[tuple[str, list[tuple[str, object]]]]:
    """Return (title, [(name, number)]) of each table in a summary that has entries."""
    tables = [(title, summary.get(key)) for key, title in COUNTS.items()]
    return [(title, [*table.items()]) for title, table in tables if isinstance(table, dict) and table]


def find_dataset(command: JobCommand) -> str:
    """Return the dataset of a command of this page; empty for other commands."""
    words = command.words
    if command.verb == "report" and words:
        return words[0]
    if command.verb == "plan" and "--show-batch" in words:
        return find_word(words, "--data.train").rpartition("/")[0]
    return ""


def link_results(job: StudioJob) -> list[Link]:
    """Return the way back from a job that has shown tokens."""
    folder = find_dataset(job.command) if job.command.verb == "plan" else ""
    return [link_to("Back to the dataset", "/chats/dataset", folder=folder)] if folder else []
