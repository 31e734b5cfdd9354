"""The pages of recordings: folders, consent, and the command that prepares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_records import JobEnd
from overtone.studio.pages import voice_page
from overtone.studio.pages.voice_page import link_dataset
from tests.asgi import App
from tests.data_prep.conftest import MARKUP
from tests.studio.jobs.test_job_records import make_folder


def post(app: App, path: str, **body: Any) -> Any:
    answer = app.ask("POST", path, json.dumps(body).encode())
    return json.loads(answer.body) | {"status": answer.status}


def test_a_folder_asks_for_the_consent_once(app: App, tmp_path: Path) -> None:
    address = post(app, "/voice/new", name="me")["next"]
    assert address == "/voice/folder?folder=recordings%2Fme" and post(app, "/voice/new", name="me")["status"] == 400
    query = b"folder=recordings/me"
    assert b"Why may a model" in app.ask("GET", "/voice/folder", query=query).body
    prepare = {"folder": "recordings/me", "name": "me", "transcripts": "yes"}
    assert "has no speaker_consent.json" in post(app, "/voice/prepare", **prepare)["detail"]
    assert not (tmp_path / ".studio").exists()
    assert post(app, "/voice/consent", folder="recordings/me", who=MARKUP, ground="own")["next"] == address
    page = app.ask("GET", "/voice/folder", query=query).body.decode()
    assert "Why may a model" not in page and "&lt;img src=x" in page and MARKUP not in page


@pytest.mark.parametrize("who", ["", "  ", "x" * 201])
def test_a_consent_has_a_name(who: str, app: App, tmp_path: Path) -> None:
    post(app, "/voice/new", name="me")
    answer = post(app, "/voice/consent", folder="recordings/me", who=who, ground="own")
    assert answer["status"] == 400 and "who: " in answer["error"]["message"]
    assert not (tmp_path / "recordings/me/speaker_consent.json").exists()


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "a b", MARKUP, "x" * 81])
def test_names_of_folders(name: str, app: App) -> None:
    assert post(app, "/voice/new", name=name)["status"] == 400


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"transcripts": "yes"}, "--transcripts"),
        ({"transcripts": "no"}, "--whisper small"),
        (
            {"transcripts": "no", "whisper": "tiny.en", "language": "en", "preset": "clean"},
            "--whisper tiny.en --language en --preset clean",
        ),
        ({"transcripts": "yes", "speaker": "Zoë 1", "device": "cpu"}, "--transcripts --speaker 'Zoë 1' --device cpu"),
        ({"transcripts": "yes", "speakers": "folder", "speaker": "x"}, "--transcripts --speaker-from folder"),
    ],
)
def test_the_command_of_the_form(settings: dict[str, str], words: str, app: App, tmp_path: Path) -> None:
    (tmp_path / "my voice").mkdir()
    post(app, "/voice/consent", folder="my voice", who="Ann", ground="own")
    answer = post(app, "/voice/prepare/command", folder="my voice", name="me", **settings)
    assert answer["command"] == f"overtone voice 'my voice' --out data/me {words}"


def test_a_dataset_is_not_replaced_without_a_word(app: App, tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "a.wav").touch()
    (tmp_path / "data" / "rec").mkdir(parents=True)
    post(app, "/voice/consent", folder="rec", who="Ann", ground="own")
    form = {"folder": "rec", "name": "rec", "transcripts": "yes"}
    assert "data/rec exists already" in post(app, "/voice/prepare/command", **form)["detail"]
    assert "--out data/rec" in post(app, "/voice/prepare/command", **form, again="data/rec")["command"]
    assert 'value="rec-2"' in app.ask("GET", "/voice/folder", query=b"folder=rec").body.decode()


def test_hostile_folders_are_shown_as_text(app: App, tmp_path: Path) -> None:
    name = MARKUP.replace("/", "_")
    (tmp_path / "recordings" / name).mkdir(parents=True)
    (tmp_path / "recordings" / name / f"{name}.wav").touch()
    post(app, "/voice/consent", folder=f"recordings/{name}", who="Ann", ground="own")
    pages = app.ask("GET", "/voice").body, app.ask("GET", "/voice/folder", query=b"folder=recordings/" + name.encode()).body
    assert all(b"<img" not in page and b"&lt;img" in page for page in pages)


def test_a_finished_preparation_leads_to_its_dataset(tmp_path: Path) -> None:
    def link(*words: str) -> object:
        folder = make_folder(tmp_path, command={"verb": "voice", "words": list(words)})
        job_records.write_record(folder / job_records.EXIT, JobEnd(code=0, stopped=False, ended=1))
        job = job_records.read_job(tmp_path, folder.name)
        assert job is not None
        return link_dataset(job)

    assert link("rec", "--out", "data/a b") == [("/voice/dataset?folder=data%2Fa+b", "Open the dataset")]
    assert link("rec", "--out", "data/a", "--dry-run") == link("rec", "--out") == []


def test_the_settings_of_a_job_are_shown_again(app: App, tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "a.wav").touch()
    post(app, "/voice/consent", folder="rec", who="Ann", ground="own")
    words = ["rec", "--out", "data/x7", "--transcripts", "--speaker", "Zoë", "--preset", "clean"]
    id = make_folder(tmp_path, command={"verb": "voice", "words": words}).name
    page = app.ask("GET", "/voice/prepare", query=b"from=" + id.encode()).body.decode()
    assert 'value="x7"' in page and 'value="Zoë"' in page and "<option selected>clean</option>" in page
    assert '<option value="yes" selected>' in page
    assert app.ask("GET", "/voice/prepare", query=b"from=none").status == 400


@pytest.mark.parametrize(("found", "default"), [(["whisper-demo-en"], "small"), (["base.en", "whisper-demo-en"], "base.en")])
def test_the_whisper_of_the_demo_is_no_default(
    found: list[str], default: str, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voice_page, "list_whispers", lambda: found)
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "a.wav").touch()
    post(app, "/voice/consent", folder="rec", who="Ann", ground="own")
    assert f'list="whispers" value="{default}"' in app.ask("GET", "/voice/folder", query=b"folder=rec").body.decode()
