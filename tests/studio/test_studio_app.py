"""The studio answers this machine, requires the token elsewhere, and runs no script of what it shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from overtone.recipes.serving.access_control import AccessPolicy
from overtone.studio.studio_app import make_application
from tests.asgi import HOME, JSON, App
from tests.data_prep.conftest import MARKUP
from tests.page_client import CLOSED
from tests.studio.jobs.test_job_records import make_folder

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
