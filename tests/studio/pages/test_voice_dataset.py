"""The page of a voice dataset shows what is in it, and starts codes, report and a stricter trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_records import JobEnd
from overtone.studio.uploads.speaker_consent import write_consent
from tests.asgi import App
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.test_folder_content import write_dataset


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data" / "me")
    return tmp_path


def read_command(app: App, step: str, **settings: str) -> Any:
    answer = app.ask("POST", f"/voice/dataset/{step}/command", json.dumps({"folder": "data/me", **settings}).encode())
    return json.loads(answer.body)


def test_commands(app: App) -> None:
    assert read_command(app, "codes", model="codec-demo") == {"command": "overtone codes data/me --model codec-demo"}
    assert read_command(app, "report") == {"command": "overtone report data/me"}
    assert "is no dataset" in read_command(app, "report", folder="data")["detail"]
    assert "not known" in read_command(app, "stricter")["detail"]


def test_a_stricter_trial_has_the_settings_of_the_last_preparation(app: App, tmp_path: Path) -> None:
    def add(*words: str, code: int = 0, is_own: bool = True) -> None:
        folder = make_folder(tmp_path, command={"verb": "voice", "words": list(words)}, is_own=is_own)
        job_records.write_record(folder / job_records.EXIT, JobEnd(code=code, stopped=False, ended=1))

    add("old", "--out", "data/me")
    add("rec", "--out", "data/me", "--preset", "keep-all", "--language", "en")
    add("rec", "--out", "data/me", "--preset", "clean", "--dry-run")
    add("rec", "--out", "data/other")
    add("others", "--out", "data/me", code=2)
    add("evil", "--out", "data/me", is_own=False)
    assert "has no speaker_consent.json" in read_command(app, "stricter")["detail"]
    (tmp_path / "rec").mkdir()
    write_consent(tmp_path / "rec", "Ann", "own")
    expected = "overtone voice rec --out data/me --language en --preset clean --dry-run"
    assert read_command(app, "stricter") == {"command": expected}
    page = app.ask("GET", "/voice/dataset", query=b"folder=data/me").body
    assert b"What would a stricter rule remove?" in page and b'href="/train?dataset=data%2Fme"' in page


def test_a_summary_of_another_kind_is_not_shown(app: App, tmp_path: Path) -> None:
    (tmp_path / "data/me/summary.json").write_text('{"recordings": "<script>", "rejected_by_reason": 7}')
    page = app.ask("GET", "/voice/dataset", query=b"folder=data/me")
    assert page.status == 200 and b"Removed" not in page.body and b"overtone review data/me" in page.body


def test_the_settings_of_a_job_lead_to_its_dataset(app: App, tmp_path: Path) -> None:
    for words in (["data/me", "--model", "x"], ["rec", "--out", "data/me", "--dry-run"]):
        id = make_folder(tmp_path, command={"verb": "codes", "words": words}).name
        answer = app.ask("GET", "/voice/dataset/codes", query=b"from=" + id.encode())
        assert answer.status == 303 and answer.headers["location"] == "/voice/dataset?folder=data%2Fme"
