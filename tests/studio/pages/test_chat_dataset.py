"""The rows of a chat dataset are shown page by page, can be searched, and what is learned is marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.cli import text
from overtone.finetune.errors import UserError
from overtone.studio.pages.chat_dataset import ROWS, list_counts, read_page
from tests.asgi import App
from tests.data_prep.conftest import MARKUP
from tests.studio.jobs.test_job_records import make_folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    turns = [[("user", f"Question {one}"), ("assistant", f"{MARKUP} ÄRGER {one}")] for one in range(25)]
    rows = [{"messages": [{"role": role, "content": content} for role, content in row]} for row in turns]
    rows += [rows[0], {"messages": []}]
    (tmp_path / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert text.main([str(tmp_path / "given.jsonl"), "--out", str(tmp_path / "data" / "us"), "--val-share", "0"]) == 0
    return tmp_path


def test_pages_cover_all_rows_once(place: Path) -> None:
    path = place / "data" / "us" / "train.jsonl"
    pages = [read_page(path, "", number) for number in (1, 2, 3, 4)]
    assert [len(page.rows) for page in pages] == [ROWS, ROWS, 5, 0] and [page.has_more for page in pages] == [True, True, False, False]
    assert len({row.place for page in pages for row in page.rows}) == 25
    (row,) = read_page(path, "ärger 17", 1).rows
    assert [(turn.role, turn.learned) for turn in row.turns] == [("user", False), ("assistant", True)]


def test_the_page_says_how_the_files_were_read(app: App) -> None:
    page = app.ask("GET", "/chats/dataset", query=b"folder=data/us").body.decode()
    assert 'href="/train?dataset=data%2Fus"' in page
    assert "the same as another" in page and "Rows by file" in page and page.count('class="words learned"') == ROWS
    assert "Next page" in page and "Previous page" not in page and "&lt;img src=x" in page and "<img" not in page
    rejected = app.ask("GET", "/chats/dataset", query=b"folder=data/us&part=rejects").body.decode()
    assert "the same as" in rejected and "rejects.jsonl:2" in rejected


@pytest.mark.parametrize("query", [b"page=0", b"page=-1", b"page=x", b"page=" + b"9" * 5000, b"part=secret", b"search=" + b"x" * 501])
def test_queries_are_checked(query: bytes, app: App) -> None:
    assert app.ask("GET", "/chats/dataset", query=b"folder=data/us&" + query).status == 400


def test_a_row_that_cannot_be_read_is_named(place: Path, app: App) -> None:
    (place / "data" / "us" / "train.jsonl").write_text('{"messages": 7}\n')
    with pytest.raises(UserError, match=r"train\.jsonl:1"):
        read_page(place / "data" / "us" / "train.jsonl", "", 1)
    assert app.ask("GET", "/chats/dataset", query=b"folder=data/us").status == 400


def test_a_link_is_not_followed(place: Path) -> None:
    (place / "data" / "us" / "val.jsonl").symlink_to(place / "given.jsonl")
    with pytest.raises(UserError, match="is a link"):
        read_page(place / "data" / "us" / "val.jsonl", "", 1)


def test_a_summary_of_another_kind_is_not_shown() -> None:
    assert list_counts({"sources": 7, "shapes": {}, "reasons": {"<b>": 1}}) == [("Rejected rows", [("<b>", 1)])]


def read_command(app: App, step: str, **form: str) -> Any:
    return json.loads(app.ask("POST", f"/chats/dataset/{step}/command", json.dumps({"folder": "data/us", **form}).encode()).body)


def test_commands(app: App, place: Path) -> None:
    expected = "overtone plan --recipe llm_sft --model.source a/b --data.train data/us/train.jsonl --show-batch"
    assert read_command(app, "tokens", model="a/b") == {"command": expected}
    assert "model: Field required" in str(read_command(app, "tokens"))
    summary = place / "data" / "us" / "summary.json"
    for kind, more in (("pairs", ""), ("labels", " --options.objective kto")):
        summary.write_text(json.dumps({**json.loads(summary.read_text()), "rows": kind}))
        assert read_command(app, "tokens", model="a/b") == {"command": expected.replace("llm_sft", "llm_dpo") + more}
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "rows": "prompts"}))
    rewarded = expected.replace("llm_sft", "llm_grpo --options.rewards.length.weight 1")
    assert read_command(app, "tokens", model="a/b") == {"command": rewarded}
    assert read_command(app, "report", model="a/b") == {"command": "overtone report data/us --tokenizer a/b"}
    assert "detail" in read_command(app, "report", folder="..")
    for verb, words in (("report", ["data/us"]), ("plan", expected.split()[2:])):
        id = make_folder(place, command={"verb": verb, "words": words}).name
        answer = app.ask("GET", "/chats/dataset/tokens", query=b"from=" + id.encode())
        assert answer.headers["location"] == "/chats/dataset?folder=data%2Fus"
