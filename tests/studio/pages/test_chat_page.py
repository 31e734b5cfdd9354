"""The pages of chats: folders, and the command that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.studio.pages.chat_page import ChatForm, build_command
from tests.asgi import App
from tests.data_prep.conftest import MARKUP
from tests.studio.jobs.test_job_records import make_folder


def post(app: App, path: str, **body: Any) -> Any:
    return json.loads(app.ask("POST", path, json.dumps(body).encode()).body)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ""),
        ({"rows": "pairs", "val_share": "0.1"}, " --rows pairs --val-share 0.1"),
        ({"rows": "raw"}, " --raw"),
        ({"shape": "alpaca", "columns": "prompt=a b", "join_turns": True}, " --shape alpaca --columns 'prompt=a b' --join-turns"),
        ({"person": "Zoë <b>"}, " --as 'Zoë <b>'"),
    ],
)
def test_the_command_of_the_form(settings: dict[str, Any], words: str, app: App) -> None:
    assert post(app, "/chats/new", name="us") == {"next": "/chats/folder?folder=chats%2Fus"}
    assert post(app, "/chats/prepare/command", folder="chats/us", name="us", **settings) == {
        "command": f"overtone text chats/us --out data/us{words}"
    }


@pytest.mark.parametrize("folder", ["../x", "/etc", "-x", ".studio", "none"])
def test_folders_outside_are_refused(folder: str, app: App, tmp_path: Path) -> None:
    (tmp_path / ".studio").mkdir()
    assert "detail" in post(app, "/chats/prepare", folder=folder, name="us")


def test_a_dataset_is_not_replaced_without_a_word(app: App, tmp_path: Path) -> None:
    (tmp_path / "chats" / "us").mkdir(parents=True)
    (tmp_path / "chats" / "us" / "a.jsonl").touch()
    (tmp_path / "data" / "us").mkdir(parents=True)
    form = {"folder": "chats/us", "name": "us"}
    assert "data/us exists already" in post(app, "/chats/prepare/command", **form)["detail"]
    assert "--out data/us" in post(app, "/chats/prepare/command", **form, again="data/us")["command"]
    assert 'value="us-2"' in app.ask("GET", "/chats/folder", query=b"folder=chats/us").body.decode()
    id = make_folder(tmp_path, command={"verb": "text", "words": ["chats/us", "--out", "data/us", "--as=-- A"]}).name
    page = app.ask("GET", "/chats/prepare", query=b"from=" + id.encode()).body.decode()
    assert 'name="again" value="data/us"' in page and 'value="us"' in page and 'value="-- A"' in page


def test_the_last_option_of_a_job_is_shown_again(app: App, tmp_path: Path) -> None:
    (tmp_path / "chats" / "us").mkdir(parents=True)
    (tmp_path / "chats" / "us" / "a.jsonl").touch()
    words = build_command(tmp_path, ChatForm(folder="chats/us", name="us", rows="raw"))[1]
    id = make_folder(tmp_path, command={"verb": "text", "words": words}).name
    assert words[-1] == "--raw"
    assert 'value="raw" selected' in app.ask("GET", "/chats/prepare", query=b"from=" + id.encode()).body.decode()


def test_the_settings_of_a_job_are_shown_again(app: App, tmp_path: Path) -> None:
    folder = tmp_path / "chats" / MARKUP.replace("/", "_")
    folder.mkdir(parents=True)
    (folder / f"{MARKUP}.jsonl").touch()
    form = ChatForm(folder=str(folder.relative_to(tmp_path)), name="x7", rows="labels", shape="dolly", columns=MARKUP, join_turns=True)
    words = build_command(tmp_path, form)[1]
    id = make_folder(tmp_path, command={"verb": "text", "words": words}).name
    page = app.ask("GET", "/chats/prepare", query=b"from=" + id.encode()).body.decode()
    assert 'value="x7"' in page and "<option selected>dolly</option>" in page and 'value="labels" selected' in page
    assert 'name="join_turns" checked' in page and "&lt;img src" in page and "<img" not in page
    assert "<img" not in app.ask("GET", "/chats").body.decode()
