"""`overtone select` finds the recipe of a run; without a selection of its own, the checkpoints' evaluations decide."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune import __main__ as verbs
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.cli import select_checkpoint
from overtone.finetune.exporting import selection_record
from tests.finetune import tiny
from tests.finetune.exporting.test_export import everything, runs

__all__ = ["runs"]
RECIPE = ["--recipe", str(tiny.FOLDER)]


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(runs["full"], tmp_path / "a run")
    return tmp_path / "a run"


def evaluate(run: Path, **losses: float) -> None:
    """Give checkpoints an evaluation: `step_2=3.0`."""
    for name, loss in losses.items():
        path = checkpoint.folder_of(run) / f"step-{int(name.partition('_')[2]):08d}"
        tiny.reseal(path, evaluation={"loss": loss, "accuracy": 1 - loss}, validation_loss=loss)


def test_other_arguments_are_passed_to_the_recipe_unchanged(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, list[str]]] = []
    choosing = replace(tiny.RECIPE, inference=replace(tiny.RECIPE.inference, select=lambda run, argv: seen.append((run, argv)) or 7))  # type: ignore[func-returns-value]  # note, then 7
    monkeypatch.setattr(select_checkpoint, "load_inference", lambda _: choosing.inference)
    rest = ["--data", "rows.jsonl", "--strengths", "0.4", "1"]
    assert select_checkpoint.main([str(run), *rest[:2], *RECIPE, *rest[2:]]) == 7 and seen == [(run, rest)]
    assert select_checkpoint.main([f"--recipe={tiny.FOLDER}", str(run), *rest]) == 7 and seen[1] == (run, rest)


def test_evaluations_decide_and_the_choice_is_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(run, step_2=0.25, step_3=0.5)
    assert verbs.main(["select", str(run), *RECIPE]) == 0
    shown = capsys.readouterr().out
    reason = "step-00000002 has the lowest validation loss of 2 evaluated checkpoints: 0.25"
    assert f"* step-00000002  loss 0.25\n  step-00000003  loss 0.5\nselected: {reason}\n" in shown
    assert f"next: overtone export '{run}' --best --to 'exports/a run'\n" in shown
    target = tmp_path / "one" / "best"
    assert verbs.main(["export", str(run), "--best", "--to", str(target), *RECIPE]) == 0
    assert f"step 2 at strength 1, as selected: {reason}\n{target} is ready" in capsys.readouterr().out
    assert verbs.main(["export", str(run), "--step", "2", "--to", str(tmp_path / "two" / "best"), *RECIPE]) == 0
    assert everything(target) == everything(tmp_path / "two" / "best")
    assert json.loads((target / "overtone.json").read_text())["step"] == 2


def test_the_selected_strength_is_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    selection_record.write_selection(run, checkpoint.folder_of(run) / "step-00000002", 0.5, "half is better", {})
    assert verbs.main(["export", str(run), "--best", "--to", str(tmp_path / "half"), *RECIPE]) == 0
    assert "step 2 at strength 0.5, as selected: half is better\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "half" / "overtone.json").read_text())["strength"] == 0.5


def test_checkpoints_without_an_evaluation_are_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert select_checkpoint.main([str(run), *RECIPE]) == 2
    assert "none of 2 checkpoints was evaluated by loss at its step; train with data.val" in capsys.readouterr().err
    evaluate(run, step_2=0.5)
    assert select_checkpoint.main([str(run), *RECIPE]) == 0
    assert "note: step-00000003 has no evaluation by loss at its step and was not considered" in capsys.readouterr().out


def test_evaluations_on_other_validation_rows_are_not_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(run, step_2=0.25, step_3=0.5)
    for step, digest in ((2, "old rows"), (3, "new rows")):
        tiny.reseal(checkpoint.folder_of(run) / f"step-{step:08d}", validation=digest)
    assert select_checkpoint.main([str(run), *RECIPE]) == 0
    shown = capsys.readouterr().out
    assert "note: step-00000002 was evaluated on other validation rows than step-00000003 and was not considered" in shown
    assert "selected: step-00000003 has the lowest validation loss of 1 evaluated checkpoints: 0.5" in shown


def test_the_metric_of_the_run_decides(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(run, step_2=0.25, step_3=0.5)
    for path in checkpoint.list_checkpoints(checkpoint.folder_of(run)):
        tiny.reseal(path, best_by="accuracy min")
    assert select_checkpoint.main([str(run), *RECIPE]) == 0
    assert "selected: step-00000003 has the lowest accuracy of 2 evaluated checkpoints: 0.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "which run? give its folder first"),
        (["--data", "rows.jsonl", "RUN"], "which run? give its folder first"),
        (["nowhere"], "nowhere: no such folder"),
        (["RUN/checkpoints"], "is not the folder of a run"),
        (["RUN", "--recipe"], "--recipe: which one?"),
        (["RUN", *RECIPE, "--data", "rows.jsonl"], f"--data: the recipe {tiny.FOLDER} generates nothing for `select`"),
    ],
)
def test_bad_arguments_are_errors(run: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert select_checkpoint.main([word.replace("RUN", str(run)) for word in argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["RUN", "--best"], "was selected yet"),
        (["RUN", "--best", "--step", "2"], "--best and --step 2: the selection chose step and strength"),
        (["RUN", "--best", "--strength", "0.5"], "--best and --strength 0.5: the selection chose"),
        (["file:///tmp/copies/me", "--best"], "--best: file:///tmp/copies/me is a copy, and selections are not copied"),
    ],
)
def test_export_best_needs_a_selection(
    run: Path, tmp_path: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verbs.main(["export", *(word.replace("RUN", str(run)) for word in argv), "--to", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_help_needs_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert select_checkpoint.main(["--help"]) == 0 and "export RUN --best --to FOLDER" in capsys.readouterr().out
    assert select_checkpoint.main(["--recipe", "voice_clone", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--data", "--asr", "--strengths", "--text-file", "--weights"))
