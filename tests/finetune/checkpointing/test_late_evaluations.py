"""A checkpoint that was saved without its evaluation gets the one of the next launch, and no other's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.late_evaluations import LateEvaluation, write_evaluation
from overtone.finetune.errors import UserError
from tests.finetune import tiny

LATE = LateEvaluation(
    validation_loss=2.0, evaluation={"loss": 2.0}, best_by=None, best_value=2.0, stale_evaluations=0, validation="these rows"
)


def write_checkpoint(run: Path, step: int = 3, **changes: Any) -> Path:
    path = checkpoint.folder_of(run) / f"step-{step:08d}"
    path.mkdir(parents=True)
    (path / "state.json").write_text(json.dumps(tiny.state(step, **changes)))
    (path / "manifest.json").write_bytes(checkpoint.seal({"format": checkpoint.FORMAT, "step": step, "files": {}}))
    return path


def test_a_late_evaluation_is_part_of_the_state(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path)
    before = checkpoint.read_state(path)
    write_evaluation(path, LATE)
    assert checkpoint.read_state(path) == {**before, **LATE.model_dump()}
    assert [one.name for one in path.iterdir() if one.name not in ("state.json", "manifest.json")] == [], "it is not changed itself"


def test_an_evaluation_of_the_checkpoint_itself_stays(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, validation_loss=5.0, evaluation={"loss": 5.0})
    write_evaluation(path, LATE)
    assert checkpoint.read_state(path)["validation_loss"] == 5.0


@pytest.mark.parametrize(
    "change",
    [
        b"{",
        b"[]",
        {"manifest": "of a checkpoint that was here before"},
        {"validation_loss": "low"},
        {"stale_evaluations": -1},
    ],
    ids=["half", "a list", "another checkpoint", "a text", "a negative number"],
)
def test_a_record_that_does_not_fit_counts_as_missing(tmp_path: Path, change: bytes | dict[str, object]) -> None:
    path = write_checkpoint(tmp_path)
    write_evaluation(path, LATE)
    (record,) = (tmp_path / "late_evaluations").iterdir()
    record.write_bytes(change if isinstance(change, bytes) else json.dumps({**json.loads(record.read_text()), **change}).encode())
    assert checkpoint.read_state(path)["validation_loss"] is None


def test_other_keys_of_a_record_change_nothing(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path)
    write_evaluation(path, LATE)
    (record,) = (tmp_path / "late_evaluations").iterdir()
    record.write_text(json.dumps({**json.loads(record.read_text()), "step": 9, "recipe": "another"}))
    assert (checkpoint.read_state(path)["step"], checkpoint.read_state(path)["recipe"]) == (3, str(tiny.FOLDER))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path)
    (tmp_path / "late_evaluations").write_text("a file")
    with pytest.raises(UserError, match="late_evaluations is a file, not a folder"):
        write_evaluation(path, LATE)
