"""The lists of folders with uploaded files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.asgi import App


@pytest.mark.parametrize(
    ("path", "kind", "title"), [("/voice", "recordings", "Folders with recordings"), ("/chats", "chats", "Folders with chats")]
)
def test_a_new_folder_is_in_its_list(app: App, place: Path, path: str, kind: str, title: str) -> None:
    answer = app.ask("POST", f"{path}/new", json.dumps({"name": "mine"}).encode())
    assert json.loads(answer.body) == {"next": f"{path}/folder?folder={kind}%2Fmine"} and (place / kind / "mine").is_dir()
    page = app.ask("GET", path).body.decode()
    assert title in page and f"{place}/{kind}</code>" in page and f"{kind}/mine" in page and f'action="{path}/new"' in page
    again = app.ask("POST", f"{path}/new", json.dumps({"name": "mine"}).encode())
    assert f"{kind}/mine exists already" in json.loads(again.body)["detail"]
