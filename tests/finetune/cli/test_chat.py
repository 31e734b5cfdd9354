"""`overtone chat` finds the recipe of a folder and refuses one without a chat."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.cli import chat
from overtone.finetune.exporting.export_provenance import CARD
from tests.finetune import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / CARD).write_text(json.dumps({"recipe": str(tiny.FOLDER)}))
    return tmp_path


def test_a_recipe_without_chat_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat.main(["--model", str(folder)]) == 2
    assert f"has no chat; use `overtone generate --model {folder} --text TEXT`" in capsys.readouterr().err


def test_other_arguments_are_passed_to_the_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, list[str]]] = []
    talking = replace(tiny.RECIPE, inference=replace(tiny.RECIPE.inference, chat=lambda model, argv: seen.append((model, argv)) or 5))  # type: ignore[func-returns-value]  # note, then 5
    monkeypatch.setattr(chat, "load_inference", lambda _: talking.inference)
    assert chat.main(["--model", str(folder), "--system", "Be brief.", "--help"]) == 5
    assert seen == [(folder, ["--system", "Be brief.", "--help"])]


def test_a_missing_model_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert chat.main(["--help"]) == 0
    assert "--model MODEL" in capsys.readouterr().out
    assert chat.main([]) == 2
