"""The selection by evaluations; `tests/finetune/cli/test_select_checkpoint.py` selects by the verb, and exports the choice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.evaluation_selection import select_by_evaluation
from tests.finetune import tiny
from tests.finetune.exporting.test_export import runs

__all__ = ["runs"]


def test_the_values_have_the_sign_of_the_metric_and_the_choice_is_recorded(runs: dict[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["full"], tmp_path / "a run"))
    with pytest.raises(UserError, match="none of 2 checkpoints was evaluated by loss"):
        select_by_evaluation(run)
    for step, accuracy in ((2, 0.75), (3, 0.5)):
        path = checkpoint.folder_of(run) / f"step-{step:08d}"
        tiny.reseal(path, evaluation={"accuracy": accuracy}, best_by="accuracy max", validation_loss=1.0)
    found = select_by_evaluation(run)
    assert (found.metric, found.values, found.choice.step, found.notes) == ("accuracy", {2: 0.75, 3: 0.5}, 2, [])
    assert found.render_report().splitlines()[:2] == ["* step-00000002  accuracy 0.75", "  step-00000003  accuracy 0.5"]
    record = json.loads((run / "selection" / "selection.json").read_text())
    assert record["choice"] == found.choice.model_dump() and record["values"] == {"step-00000002": 0.75, "step-00000003": 0.5}
