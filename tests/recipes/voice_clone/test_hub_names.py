"""A voice on the hub is used by its name in every verb; tested with the hub's client against a hub on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.__main__ import main
from overtone.recipes.speech.evaluation import voice_evaluation
from overtone.recipes.speech.serving import serve_command
from tests import loopback
from tests.finetune import fake_hub
from tests.finetune.fake_hub import COMMIT, Hub
from tests.recipes.voice_clone.served import carded


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with fake_hub.opened() as opened:
        fake_hub.point_client_at(opened, tmp_path / "hf", monkeypatch)
        monkeypatch.chdir(tmp_path)
        yield opened


def test_generate_downloads_a_voice_by_its_name_and_speaks(hub: Hub, fresh: Any, export: Any, tmp_path: Path) -> None:
    folder = carded(export(fresh, "custom_voice", tmp_path / "made"))
    (folder / "modeling_evil.py").write_text("raise SystemExit('ran')")
    hub.add("me/voice", folder)
    shutil.rmtree(folder)
    arguments = ["--text", "Hello.", "--speaker", "anna", "--max-seconds", "0.2", "--out", "hello.wav"]
    assert main(["generate", "--model", "me/voice", *arguments]) == 0
    assert (tmp_path / "hello.wav").stat().st_size > 1000
    assert not list((tmp_path / "hf").rglob("*.py")), "code is not downloaded"


def test_help_downloads_no_weights(hub: Hub, fresh: Any, export: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add("me/voice", carded(export(fresh, "custom_voice", tmp_path / "made")))
    with pytest.raises(SystemExit):
        main(["generate", "--model", "me/voice", "--help"])
    assert "--streamed-text" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "hf").rglob("*.json")} == {"overtone.json", "config.json"}
    assert not list((tmp_path / "hf").rglob("*.safetensors"))


def test_serve_and_eval_voice_take_names_for_model_and_base(
    hub: Hub, fresh: Any, export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/voice", carded(export(fresh, "custom_voice", tmp_path / "made")))
    hub.add("me/base", carded(export(fresh, "base", tmp_path / "base")))
    loaded: list[str] = []

    def load(exports: dict[str, Any], _: int, typed: dict[str, str]) -> Any:
        loaded.extend(exports)
        raise KeyboardInterrupt

    monkeypatch.setattr(serve_command, "load_models", load)
    assert main(["serve", "--model", "me/voice", "--base", "me/base", "--port", str(loopback.free_port())]) == 130
    assert loaded == ["voice", "base"], "not the commit, after which the folders are named"
    plans = []
    monkeypatch.setattr(voice_evaluation, "run_plan", lambda plan: plans.append(plan) or (_ for _ in ()).throw(KeyboardInterrupt))
    row = {"text": "Hello.", "speaker": "anna", "ref_audio": "clip.wav"}
    Path("rows.jsonl").write_text(json.dumps(row))
    shutil.copy(next(fresh.config.data.train.parent.rglob("high.flac")), "clip.wav")
    assert main(["eval-voice", "--model", "me/voice", "--base", "me/base", "--data", "rows.jsonl"]) == 130
    assert [system.name for system in plans[0].systems] == ["voice", "base before training"]
    assert all(system.folder.name == COMMIT for system in plans[0].systems)


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (["generate", "--model", "me/none", "--text", "x"], "--model me/none"),
        (["chat", "--model", "me/none"], "--model me/none"),
        (["serve", "--model", "me/none"], "--model me/none"),
        (["eval-voice", "--model", "me/none", "--data", "x"], "--model me/none"),
        (["serve", "--model", "me/voice", "--base", "me/none"], "--base me/none"),
        (["eval-voice", "--model", "me/voice", "--base", "me/none", "--data", "x"], "--base me/none"),
        (["train", "--recipe", "voice_clone", "--model.source", "me/none", "--data.train", "rows.jsonl"], "model.source me/none"),
    ],
)
def test_a_name_that_the_hub_lacks_is_one_error_with_the_flag(
    argv: list[str], flag: str, hub: Hub, fresh: Any, export: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.add("me/voice", carded(export(fresh, "custom_voice", tmp_path / "made")))
    Path("rows.jsonl").write_text("{}")
    assert main(argv) == 2
    error = capfd.readouterr().err
    assert f"{flag}: no such folder, and the download from the hub failed: the hub has no such repository, or it is private" in error
    assert "Traceback" not in error


def test_a_model_of_another_origin_needs_a_recipe(hub: Hub, nano: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add("me/base", nano)
    assert main(["generate", "--model", "me/base", "--text", "x"]) == 2
    error = capsys.readouterr().err
    assert "--model me/base: the repository contains no overtone.json" in error and "--recipe llm_sft or --recipe voice_clone" in error


def test_a_hostile_repository_is_refused_by_the_same_gate(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repositories["me/evil"] = {
        "overtone.json": b'{"recipe": "/tmp/evil"}',
        "config.json": json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.C"}}).encode(),
        "evil.py": b"raise SystemExit('ran')",
    }
    assert main(["generate", "--model", "me/evil", "--text", "x"]) == 2
    assert "a file may not choose which code runs" in capsys.readouterr().err
    assert main(["generate", "--model", "me/evil", "--recipe", "voice_clone", "--text", "x"]) == 2
    assert "model_type 'evil' is not" in capsys.readouterr().err
    assert not list(tmp_path.rglob("evil.py"))
