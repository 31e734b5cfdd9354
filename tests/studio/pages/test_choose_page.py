"""The page of checkpoints starts select and export with exactly the words that it shows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.recipe.discovery import built_in_recipes, find_recipe, load_recipe
from overtone.studio.pages import choose_page, use_page
from overtone.studio.pages.choose_page import ExportForm, list_export_words
from tests.asgi import App
from tests.studio.form_values import read_form
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.pages.test_run_page import write_run
from tests.studio.test_folder_content import write_dataset

RUN = {"run": "runs/a", "name": "mine"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    run = write_run(tmp_path / "runs" / "a", 1e-3, {"event": "evaluation", "step": 3, "val/loss": 1.25})
    (run / "checkpoints" / "step-00000003" / "state.json").write_text(json.dumps({"recipe": "llm_sft"}))
    return tmp_path


@pytest.mark.slow
@pytest.mark.ci
def test_the_formats_are_those_of_the_recipes() -> None:
    for name in built_in_recipes():
        formats = load_recipe(find_recipe(name)).formats
        assert choose_page.FORMATS.get(name, formats[:1]) == formats


def test_what_a_model_does_is_what_its_recipe_offers() -> None:
    speaking = ["codec_lm", "csm", "voice_clone", "voice_dpo", "voice_grpo"]
    assert [name for name in sorted(built_in_recipes()) if choose_page.can_speak(name)] == speaking
    assert [name for name in sorted(built_in_recipes()) if use_page.can_chat(name)] == ["llm_dpo", "llm_grpo", "llm_sft"]
    assert not choose_page.can_speak("../evil") and not use_page.can_chat("../evil")


def test_checkpoints_are_listed_with_their_evaluation(app: App, place: Path) -> None:
    page = app.ask("GET", "/choose", query=b"run=runs%2Fa").body.decode()
    assert '<th scope="row">1</th><td>not evaluated</td>' in page and '<th scope="row">3</th><td>1.25</td>' in page
    assert "ollama" in page and "Whisper" not in page and "best (chosen)" not in page
    (place / "runs" / "a" / "selection").mkdir()
    (place / "runs" / "a" / "selection" / "selection.json").write_text("{}")
    assert "Show its table" not in app.ask("GET", "/choose", query=b"run=runs%2Fa").body.decode()
    (place / "runs" / "a" / "selection" / "selection.html").write_text("<p>the table</p>")
    page = app.ask("GET", "/choose", query=b"run=runs%2Fa").body.decode()
    assert 'href="/report?folder=runs/a/selection&amp;page=selection.html"' in page
    shown = app.ask("GET", "/report", query=b"folder=runs%2Fa%2Fselection&page=selection.html")
    assert shown.body == b"<p>the table</p>" and shown.headers["content-security-policy"].startswith("sandbox")
    assert app.ask("GET", "/report", query=b"folder=runs%2Fa%2Fselection&page=selection.json").status == 400
    assert "best (chosen)" in app.ask("GET", "/choose", query=b"run=runs%2Fa").body.decode()
    assert "/choose?run=runs%2Fa" in app.ask("GET", "/").body.decode()


def test_a_voice_is_compared_with_recordings(app: App, place: Path) -> None:
    state = place / "runs" / "a" / "checkpoints" / "step-00000003" / "state.json"
    state.write_text(json.dumps({"recipe": "voice_clone"}))
    (write_dataset(place / "data" / "me") / "val.jsonl").write_text("{}\n")
    page = app.ask("GET", "/choose", query=b"run=runs%2Fa").body.decode()
    assert "<option>data/me/val.jsonl</option>" in page and "Whisper model" in page and "custom_voice" in page


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"checkpoint": "best"}, ["--best"]),
        ({"checkpoint": "30", "strength": "0.7"}, ["--step", "30", "--strength", "0.7"]),
        ({"format": "gguf", "quantize": "q8_0"}, ["--format", "gguf", "--quantize", "q8_0"]),
        ({"adapter_only": True}, ["--adapter-only"]),
    ],
)
def test_the_words_of_an_export(changes: dict[str, object], words: list[str], place: Path) -> None:
    form = ExportForm.model_validate({**RUN, **changes})
    assert list_export_words(place, form) == ["runs/a", "--to", "exports/mine", *words]


@pytest.mark.parametrize(
    "words",
    [
        ["select", "runs/a"],
        ["select", "runs/voice", "--data", "data/me/val.jsonl", "--asr", "tiny"],
        ["export", "runs/a", "--to", "exports/mine"],
        ["export", "runs/a", "--to", "exports/mine", "--best"],
        ["export", "runs/a", "--to", "exports/mine", "--step", "1", "--format", "gguf", "--strength", "0.7", "--quantize", "q8_0"],
        ["export", "runs/a", "--to", "exports/mine", "--step", "3", "--adapter-only"],
    ],
    ids=["select", "select a voice", "export", "export the best", "export a step", "export an adapter"],
)
def test_changed_settings_begin_with_those_of_the_job(words: list[str], app: App, place: Path) -> None:
    voice = write_run(place / "runs" / "voice", 1e-3, {"event": "evaluation", "step": 3, "val/loss": 1.25})
    (voice / "checkpoints" / "step-00000003" / "state.json").write_text(json.dumps({"recipe": "voice_clone"}))
    for name in ("me", "you"):
        (write_dataset(place / "data" / name) / "val.jsonl").write_text("{}\n")
    (place / "runs" / "a" / "selection").mkdir()
    (place / "runs" / "a" / "selection" / "selection.json").write_text("{}")
    path = f"/choose/{words[0]}"
    id = make_folder(place, command={"verb": words[0], "words": words[1:], "page": path}).name
    fields = json.dumps(read_form(app.ask("GET", path, query=f"from={id}".encode()).body, path)).encode()
    assert shlex.split(json.loads(app.ask("POST", f"{path}/command", fields).body)["command"]) == ["overtone", *words]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"checkpoint": "--push-to-hub"}, "is no step"),
        ({"checkpoint": "best", "strength": "1"}, "its own strength"),
        ({"name": "../a"}, "is no name"),
        ({"run": "/etc"}, "is no folder"),
    ],
)
def test_wrong_fields_of_an_export_are_refused(changes: dict[str, object], reason: str, place: Path) -> None:
    with pytest.raises(UserError, match=reason):
        list_export_words(place, ExportForm.model_validate({**RUN, **changes}))


def test_the_shown_commands(app: App, place: Path) -> None:
    shown = json.loads(app.ask("POST", "/choose/export/command", json.dumps(RUN).encode()).body)["command"]
    assert shlex.split(shown) == ["overtone", "export", "runs/a", "--to", "exports/mine"]
    body = json.dumps({"run": "runs/a", "data": "data/me/val.jsonl", "asr": "small"}).encode()
    shown = json.loads(app.ask("POST", "/choose/select/command", body).body)["command"]
    assert shlex.split(shown) == ["overtone", "select", "runs/a", "--data", "data/me/val.jsonl", "--asr", "small"]
    assert not (place / ".studio").exists()
    assert app.ask("POST", "/choose/export", json.dumps({**RUN, "push_to_hub": "me"}).encode()).status == 400
