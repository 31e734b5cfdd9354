"""What can be evaluated, and with which options; `tests/recipes/speech/cli/test_evaluate.py` evaluates whole voices."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.recipes.speech.evaluation.voice_evaluation import check_card, check_numbers


def test_only_an_export_with_a_model_card_gets_results(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "snapshots" / ("0" * 40)
    (run / "checkpoints").mkdir(parents=True)
    other.mkdir(parents=True)
    for model, message in ((run, "is a run, which has no model card"), (other, "was downloaded from the hub"), (tmp_path, "No such file")):
        with pytest.raises(UserError, match=f"--card: .*{message}"):
            check_card(model)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_time_limit_is_positive_and_finite(seconds: float) -> None:
    with pytest.raises(UserError, match="--max-seconds .*: must be more than 0 and finite"):
        check_numbers(None, 8, seconds, None)
    check_numbers(None, 8, 0.5, None)
