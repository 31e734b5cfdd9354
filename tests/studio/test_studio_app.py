"""The studio answers this machine, requires the token of others, and runs no script of what it shows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from overtone.recipes.serving.access_control import AccessPolicy
from overtone.studio.page_interface import Studio
from overtone.studio.page_list import PAGES
from overtone.studio.pages import home_page
from overtone.studio.studio_app import make_application
from tests.asgi import HOME, JSON, App
from tests.data_prep.conftest import MARKUP
from tests.page_client import CLOSED
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.test_folder_content import write_dataset

BROWSER = (HOME, (b"accept", b"text/html"))


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    found = App(make_application(tmp_path, "127.0.0.1", AccessPolicy(None, local=True)))
    yield found
    found.close()


def test_pages_are_shown_with_the_policy(app: App) -> None:
    answer = app.ask("GET", "/", headers=BROWSER)
    assert answer.status == 200 and b"No jobs yet" in answer.body
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy


@pytest.mark.parametrize("path", [*CLOSED, "/job/1", "/job/../..", "/.studio/jobs"])
def test_nothing_else_is_answered(path: str, app: App) -> None:
    assert app.ask("GET", path).status == 404


@pytest.mark.parametrize("headers", [(HOME, JSON, (b"origin", b"https://evil.example")), ((b"host", b"evil.example"), JSON)])
def test_other_sites_are_refused(headers: object, app: App, tmp_path: Path) -> None:
    id = make_folder(tmp_path).name
    assert app.ask("POST", f"/job/{id}/repeat", b"{}", headers).status in (400, 403)
    assert len(list((tmp_path / ".studio" / "jobs").iterdir())) == 1


def test_a_token_is_required_if_there_is_one(tmp_path: Path) -> None:
    app = App(make_application(tmp_path, "0.0.0.0", AccessPolicy("t" * 20, local=False)))
    answer = app.ask("GET", "/", headers=BROWSER)
    assert answer.status == 401 and answer.headers["www-authenticate"].startswith("Basic")
    assert app.ask("GET", "/", headers=(*BROWSER, (b"authorization", b"Bearer " + b"t" * 20))).status == 200
    app.close()


def test_a_missing_job_is_a_sentence_for_people_and_json_for_scripts(app: App) -> None:
    path = "/job/20260101-000000-000000000"
    page, answer = app.ask("GET", path, headers=BROWSER), app.ask("GET", path)
    assert page.status == 404 and b"<h1" in page.body and b"there is no job" in page.body
    assert answer.status == 404 and "there is no job" in json.loads(answer.body)["detail"]


@pytest.mark.parametrize(("path", "status"), [("/none", 404), ("/use?model=none", 400), ("/use/sound?file=%00", 400)])
def test_refused_requests_are_a_sentence_for_people(path: str, status: int, app: App) -> None:
    path, _, query = path.partition("?")
    page = app.ask("GET", path, headers=BROWSER, query=query.encode())
    assert page.status == status and b"<h1" in page.body and "content-security-policy" in page.headers
    assert app.ask("GET", path, query=query.encode()).body.startswith(b"{")


def test_a_browser_without_the_token_is_asked_for_it_by_a_page(tmp_path: Path) -> None:
    app = App(make_application(tmp_path, "0.0.0.0", AccessPolicy("t" * 20, local=False)))
    page = app.ask("GET", "/", headers=BROWSER)
    assert page.status == 401 and b"<h1" in page.body and page.headers["www-authenticate"].startswith("Basic")
    app.close()


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (PermissionError(13, "Permission denied", "data"), 400, "data: Permission denied"),
        (ValueError("half \ud800"), 400, "half \\ud800"),
        (RuntimeError("secret"), 500, "bug of the studio"),
    ],
)
def test_errors_are_a_sentence_with_the_policy(
    error: Exception, status: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Path) -> None:
        raise error

    monkeypatch.setattr(home_page, "list_content", fail)
    client = TestClient(
        make_application(tmp_path, "127.0.0.1", AccessPolicy(None, local=True)), "http://127.0.0.1", raise_server_exceptions=False
    )
    page = client.get("/", headers={"accept": "text/html"})
    assert page.status_code == status and sentence in page.text and "secret" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"] and page.headers["x-content-type-options"] == "nosniff"
    assert ("half" in capsys.readouterr().err) == isinstance(error, ValueError)


def test_a_folder_that_cannot_be_written_is_explained(app: App, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data" / "me", made_by="overtone text")
    (tmp_path / ".studio").touch()
    form = {"recipe": "llm_sft", "dataset": "data/me", "name": "mine", "model": "a/b"}
    answer = app.ask("POST", "/train", json.dumps(form).encode())
    assert answer.status == 400 and ".studio" in json.loads(answer.body)["detail"]


def test_home_names_what_it_cannot_show(app: App, tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"recordings/caf\xe9"):
        (tmp_path / os.fsdecode(name) / "checkpoints").mkdir(parents=True)
    (tmp_path / os.fsdecode(b"recordings/caf\xe9/a.wav")).touch()
    for path in ("/", "/train", "/voice", "/chats"):
        page = app.ask("GET", path, headers=BROWSER)
        assert page.status == 200, path
    assert b"2 folders cannot be read" in app.ask("GET", "/", headers=BROWSER).body


FORM_PATHS = [
    "/train", "/train/plan", "/choose/select", "/choose/export", "/use/speak", "/use/answer", "/use/evaluate", "/use/serve",
    "/use/push", "/voice/prepare", "/chats/prepare", "/voice/dataset/codes", "/voice/dataset/report", "/voice/dataset/stricter",
    "/chats/dataset/tokens", "/chats/dataset/report",
]  # fmt: skip


def test_the_settings_of_every_form_can_be_changed(app: App, tmp_path: Path) -> None:
    words = ["data/me", "--model", "data/me", "--out", "data/me", "--data.train", "data/me/train.jsonl", "--show-batch"]
    write_dataset(tmp_path / "data" / "me", made_by="overtone text")
    (tmp_path / "data" / "me" / "train.jsonl").write_text('{"messages": [{"role": "assistant", "content": "x"}]}\n')
    verbs = {"/chats/dataset/tokens": "plan", "/chats/dataset/report": "report"}
    studio = Studio(tmp_path, "127.0.0.1")
    pages = [make(studio) for make in PAGES]
    previews = [route.path for page in pages for route in page.routes if route.path.endswith("/command")]
    assert sorted(path.removesuffix("/command") for path in previews) == sorted(FORM_PATHS)
    for path in FORM_PATHS:
        id = make_folder(tmp_path, command={"verb": verbs.get(path, "train"), "words": words, "page": path}).name
        page = app.ask("GET", path, headers=BROWSER, query=b"from=" + id.encode())
        if page.status == 303:
            address, _, query = page.headers["location"].partition("?")
            page = app.ask("GET", address, headers=BROWSER, query=query.encode())
        assert page.status == 200, path
        missing = app.ask("GET", path, query=b"from=20260101-000000-000000000")
        assert missing.status == 404 and b"there is no job" in missing.body, path


def test_a_folder_with_a_link_gets_a_sentence(app: App, tmp_path: Path) -> None:
    (tmp_path / ".studio").symlink_to("/tmp")
    answer = app.ask("GET", "/", headers=BROWSER)
    assert answer.status == 400 and b"link" in answer.body


def test_texts_of_the_folder_are_shown_as_text(app: App, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, command={"verb": "train", "words": [MARKUP, "--run.dir", MARKUP], "page": "javascript:alert(1)"})
    (folder / "log.txt").write_text(f"error: {MARKUP}\n")
    (tmp_path / MARKUP.replace("/", "_") / "checkpoints").mkdir(parents=True)
    for path in ("/", "/jobs", f"/job/{folder.name}", f"/job/{folder.name}/log"):
        answer = app.ask("GET", path, headers=BROWSER)
        assert answer.status == 200
        assert (b"<script>alert" not in answer.body and b"<img" not in answer.body) or answer.headers["content-type"].startswith(
            "text/plain"
        )
        assert b"javascript:" not in answer.body
