"""Uploads are admitted into folders of chats, and into folders of recordings with a consent."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode

import pytest

from overtone.studio.uploads.received_files import LARGEST_PIECE
from overtone.studio.uploads.speaker_consent import write_consent
from tests.asgi import HOME, Answer, App


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("recordings/me", "chats/us", ".studio/jobs"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def send(app: App, content: bytes, headers: tuple[tuple[bytes, bytes], ...] = (HOME,), **query: object) -> Answer:
    given = {"id": "a" * 32, "folder": "recordings/me", "name": "a.wav", "offset": 0, "size": len(content), "replace": "no", **query}
    return app.ask("POST", "/upload", content, headers, urlencode(given).encode())


def test_recordings_need_a_consent(app: App, tmp_path: Path) -> None:
    assert send(app, b"x").status == 403 and send(app, b"x", folder="recordings/../recordings/me").status == 400
    write_consent(tmp_path / "recordings/me", "Ann", "own")
    answer = send(app, b"x", name="a\u202e.wav")
    assert json.loads(answer.body) == {"path": "a_.wav", "whole": True, "was_there": False}
    assert send(app, b"x", folder="chats/us", name="a.jsonl").status == 200 and (tmp_path / "chats/us/a.jsonl").read_bytes() == b"x"


@pytest.mark.parametrize("folder", [".studio/jobs", "", "none", "/etc", "..", "-x", "a\0b"])
def test_other_folders_are_refused(folder: str, app: App) -> None:
    assert send(app, b"x", folder=folder).status == 400


@pytest.mark.parametrize("query", [{"id": "../x"}, {"offset": -1}, {"size": "many"}, {"replace": "perhaps"}])
def test_queries_are_checked(query: dict[str, object], app: App) -> None:
    assert send(app, b"x", folder="chats/us", **query).status == 400


def test_a_piece_is_bounded(app: App, tmp_path: Path) -> None:
    assert send(app, b"x" * (LARGEST_PIECE + 1), folder="chats/us").status == 413 and list((tmp_path / "chats/us").iterdir()) == []


def test_a_request_without_its_query_gets_a_sentence(app: App) -> None:
    answer = app.ask("POST", "/upload", b"x")
    assert answer.status == 400 and "lacks folder, id" in json.loads(answer.body)["detail"]


def test_other_sites_are_refused(app: App, tmp_path: Path) -> None:
    assert send(app, b"x", (HOME, (b"origin", b"https://evil.example")), folder="chats/us").status == 403
    assert list((tmp_path / "chats/us").iterdir()) == []


def test_a_browser_learns_how_much_is_stored(app: App) -> None:
    def read_size(id: str) -> object:
        return json.loads(app.ask("GET", "/upload", query=f"id={id}".encode()).body)

    assert send(app, b"abc", folder="chats/us", size=9).status == 200
    assert read_size("a" * 32) == {"size": 3} and read_size("b" * 32) == {"size": 0}
    assert app.ask("GET", "/upload", query=b"id=../jobs").status == 400
    assert app.ask("GET", "/upload").status == 400
    assert send(app, b"def", folder="chats/us", offset=3, size=9).status == 200 and read_size("a" * 32) == {"size": 6}
