"""An exported folder knows its recipe, and everything else on the command line is the recipe's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from finetune import generate
from finetune.export import CARD
from tests.finetune import tiny


def exported(folder: Path, card: object) -> Path:
    folder.mkdir()
    (folder / CARD).write_text(card if isinstance(card, str) else json.dumps(card))
    return folder


def test_the_folder_names_its_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = exported(tmp_path / "voice", {"recipe": str(tiny.FOLDER)})
    assert generate.main(["--model", str(folder)]) == 0
    assert capsys.readouterr().out == "voice says nothing\n"


def test_another_tools_folder_needs_the_recipes_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "voice").mkdir()
    assert generate.main(["--model", str(tmp_path / "voice")]) == 2
    assert (
        "is no exported model (overtone.json is missing or unreadable); export one, or name its recipe with --recipe"
        in capsys.readouterr().err
    )
    assert generate.main(["--model", str(tmp_path / "voice"), "--recipe", str(tiny.FOLDER)]) == 0


@pytest.mark.parametrize("card", ["{", "{}", "[]", '"text"', "\x00"])
def test_a_card_that_can_not_be_read(tmp_path: Path, card: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--model", str(exported(tmp_path / "voice", card))]) == 2
    assert "is no exported model" in capsys.readouterr().err


def test_the_rest_goes_to_the_recipe_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, list[str]]] = []
    speaking = replace(tiny.RECIPE, generate=lambda folder, argv: seen.append((folder, argv)) or 7)  # type: ignore[func-returns-value]  # note, then 7
    monkeypatch.setattr(generate, "load_recipe", lambda _: speaking)
    folder = exported(tmp_path / "voice", {"recipe": str(tiny.FOLDER)})
    rest = ["--text", "--model-like words", "--mode", "fast", "--rec", "on", "--help", "file.wav"]
    assert generate.main(["--model", str(folder), *rest]) == 7
    assert seen == [(folder, rest)], "and --mode is not short for --model"


def test_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main([]) == 2
    assert "which model? give --model FOLDER" in capsys.readouterr().err
    assert generate.main(["--help"]) == 0
    assert "--model FOLDER" in capsys.readouterr().out
