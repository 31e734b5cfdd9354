"""The form of a training starts exactly the command that it shows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import find_recipe
from overtone.finetune.recipe.discovery import load_options
from overtone.recipes.serving.access_control import AccessPolicy
from overtone.studio.jobs import job_queue, job_records
from overtone.studio.pages import train_page
from overtone.studio.pages.train_page import RECIPES, TrainForm, describe_settings, list_local_models, list_words
from overtone.studio.studio_app import make_application
from tests.asgi import App
from tests.studio.jobs.test_job_records import make_folder
from tests.studio.test_folder_content import write_dataset

FORM = {"recipe": "llm_sft", "dataset": "data/my chats", "name": "mine", "model": "Qwen/Qwen3-0.6B"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data" / "my chats", made_by="overtone text")
    write_dataset(tmp_path / "data" / "voice")
    return tmp_path


def test_the_words_are_a_command_that_the_verb_understands(place: Path) -> None:
    (place / "data" / "my chats" / "val.jsonl").write_text("{}\n")
    words = list_words(place, TrainForm.model_validate({**FORM, "adapters": "qlora", "train.lr": "1e-3", "options.supervise": "last"}))
    pairs = [(key.removeprefix("--"), value) for key, value in zip(words[::2], words[1::2], strict=True)]
    config = resolve("llm_sft", load_options(find_recipe("llm_sft")), [find_recipe("llm_sft") / "config.yaml"], pairs[1:])
    assert str(config.data.train) == "data/my chats/train.jsonl" and str(config.data.val) == "data/my chats/val.jsonl"
    assert config.train.lr == 1e-3 and config.model.lora is not None and config.model.quantization == "nf4"
    assert str(config.run.dir) == "runs/mine" and config.options.supervise == "last"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dataset": "../.."}, "is no folder"),
        ({"name": "../a"}, "is no name"),
        ({"recipe": "evil"}, "recipe evil does not train on data/my chats; choose llm_sft or llm_dpo or llm_reward"),
        ({"recipe": "voice_clone"}, "recipe voice_clone does not train on data/my chats"),
        ({"train.lrr": "1"}, "is no setting"),
        ({"recipe": "llm_sft", "run.dir": "x"}, "is no setting"),
    ],
)
def test_wrong_fields_are_refused(changes: dict[str, str], reason: str, place: Path) -> None:
    with pytest.raises(UserError, match=reason):
        list_words(place, TrainForm.model_validate({**FORM, **changes}))


@pytest.mark.parametrize("recipe", [recipe for recipes in RECIPES.values() for recipe in recipes])
def test_every_key_has_a_description_and_a_default(recipe: str) -> None:
    settings = describe_settings(recipe)
    assert len(settings) > 60 and all(one.text and one.default for one in settings), [one.key for one in settings if not one.text]
    shown = [one for one in settings if one.key == "train.optimizer"]
    assert "muon" in shown[0].choices and not {"run.dir", "data.train"} & {one.key for one in settings}
    assert bool(train_page.list_models(recipe)) == (recipe != "voice_dpo"), "which trains the export that spoke the clips"


def test_the_page_shows_the_recipes_of_the_data(app: App) -> None:
    page = app.ask("GET", "/train", query=b"dataset=data%2Fmy+chats").body.decode()
    assert "llm_dpo" in page and "voice_clone" not in page and "Peak learning rate" in page and "data/my chats" in page
    assert "voice_clone" in app.ask("GET", "/train", query=b"dataset=data%2Fvoice").body.decode()


def test_without_data_the_page_says_so(tmp_path: Path) -> None:
    app = App(make_application(tmp_path, "127.0.0.1", AccessPolicy(None, local=True)))
    assert "no dataset in this folder yet" in app.ask("GET", "/train").body.decode()
    app.close()


def test_the_shown_command_is_the_one_that_starts(app: App, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[list[str]]()
    monkeypatch.setattr(job_queue, "_start_runner", lambda place, id, held: started.append(job_records.read_job(place, id).command.words))
    body = json.dumps({**FORM, "train.steps": "3", "sample.prompts": "['a; b $(c)']"}).encode()
    command = json.loads(app.ask("POST", "/train/command", body).body)["command"]
    next_page = json.loads(app.ask("POST", "/train", body).body)["next"]
    assert shlex.split(command) == ["overtone", "train", *started[0]] and next_page.startswith("/job/")
    again = app.ask("GET", "/train", query=f"from={next_page.removeprefix('/job/')}".encode()).body.decode()
    assert 'value="3"' in again and 'value="mine"' in again and "Qwen/Qwen3-0.6B" in again
    json.loads(app.ask("POST", "/train/plan", body).body)
    assert started[1] == started[0]


def test_a_refused_setting_starts_nothing(app: App, place: Path) -> None:
    answer = app.ask("POST", "/train", json.dumps({**FORM, "checkpoint.copy_to": "s3://other/place"}).encode())
    assert answer.status == 400 and "with --checkpoint.copy_to" in json.loads(answer.body)["detail"] and not (place / ".studio").exists()
    assert app.ask("POST", "/train", json.dumps({**FORM, "train.lr": [1]}).encode()).status == 400


def test_several_processes(app: App, place: Path) -> None:
    page = app.ask("GET", "/train", query=b"dataset=data%2Fmy+chats").body.decode()
    assert '<option value="ddp">ddp: One process for each visible GPU; each holds the whole model.</option>' in page
    assert '"hsdp"' not in page and "two_nodes" not in page, "they need a terminal on each machine"
    words = list_words(place, TrainForm.model_validate({**FORM, "launch": "cpu", "num_processes": "3"}))
    assert words[-4:] == ["--launch", "cpu", "--num_processes", "3"]
    id = make_folder(place, command={"verb": "train", "words": words, "page": "/train"}).name
    again = app.ask("GET", "/train", query=f"from={id}".encode()).body.decode()
    assert '<option value="cpu" selected>' in again and 'name="num_processes" inputmode="numeric" value="3"' in again
    for fields, sentence in (
        ({"num_processes": "3"}, "--num_processes needs --launch FILE, as in --launch fsdp2 --num_processes 4"),
        ({"launch": "cpu", "num_processes": "many"}, "--num_processes many: expected a number, as in --num_processes 4"),
    ):
        for path in ("/train", "/train/plan"):
            answer = json.loads(app.ask("POST", f"{path}/command", json.dumps({**FORM, **fields}).encode()).body)
            assert answer == {"command": "", "detail": sentence}


def test_a_dataset_that_is_gone_is_named_and_replaced_by_none(app: App, place: Path) -> None:
    words = ["--recipe", "llm_sft", "--data.train", "data/gone/train.jsonl", "--run.dir", "runs/mine"]
    id = make_folder(place, command={"verb": "train", "words": words, "page": "/train"}).name
    for query in (f"from={id}", "dataset=data/gone"):
        page = app.ask("GET", "/train", query=query.encode()).body.decode()
        assert "data/gone is no dataset" in page and "Start training" not in page and '<option value="" selected>' in page
    again = app.ask("GET", "/train", query=f"from={id}&dataset=data/voice".encode()).body.decode()
    assert f'name="from" value="{id}"' in again and "Start training" in again and "no dataset" not in again


@pytest.mark.parametrize(
    ("rows", "first", "objective"),
    [("pairs", "llm_dpo", ""), ("labels", "llm_dpo", "kto"), ("prompts", "llm_grpo", ""), ("chats", "llm_sft", ""), ([], "llm_sft", "")],
)
def test_the_recipe_for_the_rows_comes_first(rows: object, first: str, objective: str, app: App, place: Path) -> None:
    write_dataset(place / "data" / "rows", made_by="overtone text", rows=rows)
    page = app.ask("GET", "/train", query=b"dataset=data/rows").body.decode()
    assert f"<option selected>{first}</option>" in page and ("<option selected>kto</option>" in page) == bool(objective)
    body = json.dumps({**FORM, "recipe": first, "dataset": "data/rows"}).encode()
    assert f"train --recipe {first}" in json.loads(app.ask("POST", "/train/command", body).body)["command"]
    assert json.loads(app.ask("POST", "/train/plan/command", body).body)["command"].startswith(f"overtone plan --recipe {first}")


def test_pairs_of_a_voice_train_preferences_alone(app: App, place: Path) -> None:
    write_dataset(place / "data" / "rows", made_by="overtone pairs")
    page = app.ask("GET", "/train", query=b"dataset=data/rows").body.decode()
    assert "<option selected>voice_dpo</option>" in page and "<option>voice_clone</option>" not in page
    body = {**FORM, "dataset": "data/rows"}
    for recipe, has_command in (("voice_dpo", True), ("voice_clone", False)):
        answer = json.loads(app.ask("POST", "/train/command", json.dumps({**body, "recipe": recipe}).encode()).body)
        assert bool(answer["command"]) == has_command, answer


def test_settings_of_a_foreign_job_are_not_shown(app: App, place: Path) -> None:
    words = ["--recipe", "llm_sft", "--data.train", "data/my chats/train.jsonl", "--model.source", "evil.example"]
    id = make_folder(place, command={"verb": "train", "words": words, "page": "/train"}, is_own=False).name
    answer = app.ask("GET", "/train", query=f"from={id}".encode())
    assert answer.status == 400 and b"was not started by you" in answer.body and b"evil.example" not in answer.body


def test_the_form_alone_chooses_quantization(app: App, place: Path) -> None:
    words = ["--recipe", "llm_sft", "--data.train", "data/my chats/train.jsonl", "--model.lora", "true", "--model.quantization", "nf4"]
    id = make_folder(place, command={"verb": "train", "words": words, "page": "/train"}).name
    page = app.ask("GET", "/train", query=f"from={id}".encode()).body.decode()
    assert '<option value="qlora" selected>' in page and 'name="model.quantization"' not in page
    assert list_words(place, TrainForm.model_validate({**FORM, "adapters": "qlora"})).count("--model.quantization") == 1
    with pytest.raises(UserError, match="is no setting"):
        list_words(place, TrainForm.model_validate({**FORM, "adapters": "lora", "model.quantization": "nf4"}))


def test_the_default_with_lora_is_shown() -> None:
    (rate,) = (one for one in describe_settings("llm_sft") if one.key == "train.lr")
    assert rate.default == "3e-05, with LoRA 0.0004"


def test_models_of_the_folder_are_offered(tmp_path: Path) -> None:
    for name in ("models/a", ".hidden/b", "one/two/three"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").touch()
        (tmp_path / name / "model.safetensors").touch()
    (tmp_path / "linked").symlink_to(tmp_path / "models")
    assert list_local_models(tmp_path) == ["models/a"]
