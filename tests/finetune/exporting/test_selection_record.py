"""Tests of `overtone.finetune.exporting.selection_record`: a choice survives on disk, and is refused if it no longer fits the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import selection_record
from tests.finetune import tiny
from tests.finetune.exporting.test_export import runs

__all__ = ["runs"]


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a run with checkpoints of steps 2 and 3."""
    shutil.copytree(runs["full"], tmp_path / "a run")
    return tmp_path / "a run"


def choose(run: Path, step: int = 2, strength: float = 0.7) -> selection_record.SelectedCheckpoint:
    path = checkpoint.folder_of(run) / f"step-{step:08d}"
    return selection_record.write_selection(run, path, strength, "it is the best", {"notes": ["a note"]})


def test_a_choice_is_found_again(run: Path) -> None:
    choice = choose(run)
    path, found = selection_record.read_selection(run)
    assert found == choice and (path.name, found.strength, found.reason) == ("step-00000002", 0.7, "it is the best")
    assert json.loads((run / "selection" / "selection.json").read_text())["notes"] == ["a note"]


def test_damaged_checkpoints_are_no_candidates(run: Path) -> None:
    newest = checkpoint.folder_of(run) / "step-00000003"
    assert [path.name for path in selection_record.find_candidates(run)[0]] == ["step-00000002", "step-00000003"]
    (newest / "config.yaml").write_text("other")
    found, notes = selection_record.find_candidates(run)
    assert [path.name for path in found] == ["step-00000002"]
    assert notes == ["step-00000003 is damaged and was not considered: config.yaml does not match its digest"]
    shutil.rmtree(found[0])
    with pytest.raises(UserError, match="contains no valid checkpoint"):
        selection_record.find_candidates(run)


def test_a_run_without_a_choice_is_refused(run: Path) -> None:
    with pytest.raises(UserError, match=r"no checkpoint of .* was selected yet; run `overtone select '.*a run' …` first"):
        selection_record.read_selection(run)


def test_a_choice_whose_checkpoint_is_gone_or_another_is_refused(run: Path) -> None:
    choose(run)
    path = checkpoint.folder_of(run) / "step-00000002"
    tiny.reseal(path, strategy="fsdp")
    with pytest.raises(UserError, match="step-00000002 was saved again after the selection"):
        selection_record.read_selection(run)
    shutil.rmtree(path)
    with pytest.raises(UserError, match="step-00000002 is gone; existing steps: 3; run"):
        selection_record.read_selection(run)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("step", "2", r"choice\.step: .*valid integer"),
        ("step", 10**20, r"choice\.step: "),
        ("strength", 2.5, r"choice\.strength: .*less than or equal to 2"),
        ("reason", "\x1b[2J", r"choice\.reason: .*printable"),
        ("manifest", None, r"choice\.manifest: .*valid string"),
    ],
)
def test_a_forged_choice_is_refused(run: Path, key: str, value: Any, message: str) -> None:
    path = run / "selection" / "selection.json"
    choose(run)
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "choice": {**found["choice"], key: value}}))
    with pytest.raises(UserError, match=message):
        selection_record.read_selection(run)
    for text in ("", "[]", "{}", '{"choice": 5}'):
        path.write_text(text)
        with pytest.raises(UserError):
            selection_record.read_selection(run)
