"""`overtone serve` finds the recipe of the folders and refuses one without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.cli import serve
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.exporting.export_provenance import CARD
from tests.finetune import tiny


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b"]
    for folder in made:
        folder.mkdir()
        (folder / CARD).write_text(json.dumps({"recipe": str(tiny.FOLDER)}))
    return made


def test_a_recipe_without_a_server_is_refused(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["--model", str(folders[0])]) == 2
    assert f"has no server; use `overtone generate --model {folders[0]} --text TEXT`" in capsys.readouterr().err


def test_all_folders_and_other_arguments_are_passed_to_the_recipe(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[dict[str, Path], list[str]]] = []
    serving = replace(tiny.RECIPE, inference=replace(tiny.RECIPE.inference, serve=lambda models, argv: seen.append((models, argv)) or 5))  # type: ignore[func-returns-value]  # note, then 5
    monkeypatch.setattr(serve, "load_inference", lambda _: serving.inference)
    assert serve.main(["--model", str(folders[0]), "--port", "1", "--model", str(folders[1]), "--help"]) == 5
    assert seen == [({str(folder): folder for folder in folders}, ["--port", "1", "--help"])]


def test_checkpoints_are_served_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.trained(join((), tmp_path), tiny.config_in(tmp_path, *tiny.FULL, ("train.steps", "2"), ("checkpoint.every", "1")))
    leave()
    assert serve.main(["--model", str(tmp_path / "run")]) == 2 and "has no server" in capsys.readouterr().err
    assert not (tmp_path / "run" / "cache" / "exports").exists(), "an export takes minutes: what fails is reported before"
    seen: list[dict[str, Path]] = []
    serving = replace(tiny.RECIPE, inference=replace(tiny.RECIPE.inference, serve=lambda models, argv: seen.append(models) or 0))  # type: ignore[func-returns-value]  # note, then 0
    monkeypatch.setattr(serve, "load_inference", lambda _: serving.inference)
    assert serve.main(["--model", str(tmp_path / "run" / "checkpoints" / "step-00000001"), "--model", str(tmp_path / "run")]) == 0
    assert [*seen[0]] == [str(tmp_path / "run" / "checkpoints" / "step-00000001"), str(tmp_path / "run")], "what was typed"
    assert [folder.name[:14] for folder in seen[0].values()] == ["step-00000001-", "step-00000002-"]
    assert all((folder / CARD).is_file() for folder in seen[0].values())


def test_a_folder_without_a_model_is_an_error(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (folders[1] / CARD).write_text(json.dumps({"recipe": "image_classification"}))
    for argv, message in (
        ([], "which model? give --model MODEL"),
        (["--model", f"{tmp_path}/missing"], f"--model {tmp_path}/missing: no such folder"),
        (["--model", f"{tmp_path}/empty"], "is not an exported model"),
        (["--model", str(folders[0]), "--model", str(folders[1])], "models of different recipes"),
        (["--model", str(folders[1])], "the recipe image_classification has no server"),
        (["--model", str(folders[1]), "--recipe", "nothing_of_that_name"], "--recipe nothing_of_that_name: no recipe.py"),
    ):
        assert serve.main(argv) == 2
        assert message in capsys.readouterr().err


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["--help"]) == 0
    assert "--model MODEL" in capsys.readouterr().out
