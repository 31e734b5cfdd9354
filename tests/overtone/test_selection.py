"""`overtone.select` by evaluations; `tests/recipes/speech/cli/test_select_voice.py` selects voices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import overtone
from overtone.finetune.cli import select_checkpoint
from overtone.finetune.monitoring.run_records import read_json
from overtone.finetune.recipe import discovery
from tests.finetune import tiny
from tests.overtone.test_training import make_settings

RECIPE = str(tiny.FOLDER)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> overtone.TrainingRun:
    return overtone.train(RECIPE, make_settings(tmp_path_factory.mktemp("my runs")))


def test_the_choice_is_that_of_the_verb_and_is_exported(
    run: overtone.TrainingRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = overtone.select(run, recipe=RECIPE)
    assert chosen.step == run.best and chosen.checkpoint == run.checkpoints[chosen.step] and chosen.strength == 1.0
    assert chosen.page is None and chosen.reason in read_json(chosen.record)["choice"]["reason"]
    losses = {(step, 1.0): {"loss": found["loss"]} for step, found in run.evaluations.items() if step in run.checkpoints}
    assert chosen.values == {at: {"loss": pytest.approx(found["loss"])} for at, found in losses.items()}
    capsys.readouterr()
    assert select_checkpoint.main([str(run.folder), "--recipe", RECIPE]) == 0
    assert capsys.readouterr().out.startswith(f"{chosen}\n"), "print(selection) is what the verb prints"
    assert overtone.select(str(run.folder), recipe=RECIPE) == chosen, "called again, with the folder"
    folder = overtone.export(run, tmp_path / "best", best=True, recipe=RECIPE)
    assert read_json(folder / "overtone.json")["step"] == chosen.step


def test_what_cannot_be_selected_is_an_error(run: overtone.TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(overtone.UserError, match="--texts: the recipe .* generates nothing for `select`"):
        overtone.select(run, texts=12, recipe=RECIPE)
    with pytest.raises(overtone.UserError, match="no such folder"):
        overtone.select(tmp_path / "none")
    with pytest.raises(overtone.UserError, match="is not the folder of a run"):
        overtone.select(tmp_path)
    own = replace(tiny.RECIPE.inference, select=lambda *_: 0)
    monkeypatch.setattr(discovery, "_read_verbs_file", lambda *_: own)
    with pytest.raises(overtone.UserError, match="has a selection of its own, which only the command `overtone select` runs"):
        overtone.select(run, recipe=RECIPE)
