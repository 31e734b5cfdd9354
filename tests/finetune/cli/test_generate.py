"""`overtone generate` finds the recipe of an exported folder and passes all other arguments to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.cli import generate
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.storage import demo_models
from tests.finetune import tiny


def exported(folder: Path, card: object) -> Path:
    folder.mkdir()
    (folder / CARD).write_text(card if isinstance(card, str) else json.dumps(card))
    return folder


def test_the_folder_names_its_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = exported(tmp_path / "voice", {"recipe": str(tiny.FOLDER)})
    assert generate.main(["--model", str(folder)]) == 0
    assert capsys.readouterr().out == "voice says nothing\n"


def test_a_demo_model_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = exported(tmp_path / "made", {"recipe": str(tiny.FOLDER)})
    (made / demo_models.CARD).write_text("# toy\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.zip").write_bytes(demo_models.pack(made))
    monkeypatch.setattr(demo_models, "IN_CLONE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert generate.main(["--model", "toy"]) == 0
    assert capsys.readouterr().out == f"{demo_models.folder_of('toy').name} says nothing\n"


def test_a_folder_of_another_tool_needs_a_named_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "voice").mkdir()
    assert generate.main(["--model", str(tmp_path / "voice")]) == 2
    assert (
        "is not an exported model (overtone.json is missing or unreadable); export one, or name its recipe with --recipe"
        in capsys.readouterr().err
    )
    assert generate.main(["--model", str(tmp_path / "voice"), "--recipe", str(tiny.FOLDER)]) == 0


@pytest.mark.parametrize("card", ["{", "{}", "[]", '"text"', "\x00"])
def test_an_unreadable_card_is_an_error(tmp_path: Path, card: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--model", str(exported(tmp_path / "voice", card))]) == 2
    assert "is not an exported model" in capsys.readouterr().err


def test_other_arguments_are_passed_to_the_recipe_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, list[str]]] = []
    speaking = replace(tiny.RECIPE.inference, generate=lambda folder, argv: seen.append((folder, argv)) or 7)  # type: ignore[func-returns-value]
    monkeypatch.setattr(generate, "load_inference", lambda _: speaking)
    folder = exported(tmp_path / "voice", {"recipe": str(tiny.FOLDER)})
    rest = ["--text", "--model-like words", "--mode", "fast", "--rec", "on", "--help", "file.wav"]
    assert generate.main(["--model", str(folder), *rest]) == 7
    assert seen == [(folder, rest)], "and --mode is not short for --model"


def test_a_run_generates_through_an_export_in_its_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the newest checkpoint or of the given one, made once for each."""
    tiny.trained(join((), tmp_path), tiny.config_in(tmp_path, *tiny.FULL, ("train.steps", "2"), ("checkpoint.every", "1")))
    leave()
    capsys.readouterr()
    run, cache = tmp_path / "run", tmp_path / "run" / "cache" / "exports"
    assert generate.main(["--model", str(run)]) == 0
    (newest,) = cache.iterdir()
    assert newest.name.startswith("step-00000002-") and capsys.readouterr().out == f"{newest.name} says nothing\n"
    assert json.loads((newest / CARD).read_text())["step"] == 2
    before = (newest / CARD).stat().st_mtime_ns
    assert generate.main(["--model", str(run / "checkpoints" / "step-00000002")]) == 0
    assert (newest / CARD).stat().st_mtime_ns == before and list(cache.iterdir()) == [newest]
    assert generate.main(["--model", str(run / "checkpoints" / "step-00000001")]) == 0
    assert sorted(path.name[:14] for path in cache.iterdir()) == ["step-00000001-", "step-00000002-"]
    capsys.readouterr()
    assert generate.main(["--model", str(run), "--strength", "0.5"]) == 0 == generate.main(["--model", str(run), "--strength", "1"])
    half, whole = (cache / line.removesuffix(" says nothing") for line in capsys.readouterr().out.splitlines())
    assert half.name == f"{newest.name}-strength-0.5" and whole == newest
    assert json.loads((half / CARD).read_text())["strength"] == 0.5 and "strength" not in json.loads((newest / CARD).read_text())
    assert generate.main(["--model", str(newest), "--strength", "0.5"]) == 2
    assert "is exported already; give the run, or export it again with --strength" in capsys.readouterr().err
    assert generate.main(["--model", str(run), "--strength", "3"]) == 2 and "--strength 3: give a number from 0" in capsys.readouterr().err


def test_a_missing_model_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main([]) == 2
    assert "which model? give --model MODEL" in capsys.readouterr().err
    assert generate.main(["--help"]) == 0
    assert "--model MODEL" in capsys.readouterr().out
