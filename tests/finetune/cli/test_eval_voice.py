"""`overtone eval-voice` finds the recipe of a run, checkpoint or export, and passes all other arguments to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.cli import eval_voice
from overtone.finetune.exporting.export_provenance import CARD
from tests.finetune import tiny


def exported(folder: Path, recipe: str) -> Path:
    folder.mkdir()
    (folder / CARD).write_text(json.dumps({"recipe": recipe}))
    return folder


def test_other_arguments_are_passed_to_the_recipe_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, list[str]]] = []
    listening = replace(tiny.RECIPE, inference=replace(tiny.RECIPE.inference, evaluate=lambda model, argv: seen.append((model, argv)) or 7))  # type: ignore[func-returns-value]  # note, then 7
    monkeypatch.setattr(eval_voice, "load_inference", lambda _: listening.inference)
    folder = exported(tmp_path / "voice", str(tiny.FOLDER))
    rest = ["--data", "rows.jsonl", "--mode", "fast", "--help"]
    assert eval_voice.main(["--model", str(folder), *rest]) == 7 and seen == [(folder, rest)]


def test_a_checkpoint_names_its_recipe_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert eval_voice.main(["--model", str(tmp_path)]) == 2
    assert "contains no valid checkpoint; give a run folder" in capsys.readouterr().err


def test_a_recipe_without_voice_evaluation_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = exported(tmp_path / "text", str(tiny.FOLDER))
    assert eval_voice.main(["--model", str(folder)]) == 2
    assert f"the recipe {tiny.FOLDER} has no evaluation of voices" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "message"), [([], "which model?"), (["--model", "nowhere"], "--model nowhere: no such folder")])
def test_a_missing_model_is_an_error(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert eval_voice.main(argv) == 2
    assert message in capsys.readouterr().err


def test_help_without_a_model_is_the_verbs_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert eval_voice.main(["--help"]) == 0
    assert "--model MODEL" in capsys.readouterr().out
