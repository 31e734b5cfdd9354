"""rollouts.jsonl at a resume, and settings that rollouts do not admit; tests/recipes/llm_grpo/test_recipe.py runs the loop."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import Lora, Model, Parallel
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import ROLLOUTS
from overtone.finetune.training.rollout_loop import RolloutLoop, check_settings, remove_later_rollouts
from overtone.recipes.llm_grpo.recipe import RECIPE


def write_log(folder: Path, *steps: int, rest: str = "") -> Path:
    path = folder / ROLLOUTS
    path.write_text("".join(json.dumps({"step": step, "prompt": "a\u2028b"}, ensure_ascii=False) + "\n" for step in steps) + rest)
    return path


@pytest.mark.parametrize("rest", ["", '{"step": 3, "pro', '{"step": 1}x\n', "[]\n", '{"step": "1"}\n'])
def test_lines_of_repeated_steps_and_half_lines_are_removed(tmp_path: Path, rest: str) -> None:
    path = write_log(tmp_path, 1, 1, 2, 3, rest=rest)
    remove_later_rollouts(tmp_path, 2)
    assert [json.loads(line)["step"] for line in path.read_text().split("\n")[:-1]] == [1, 1, 2] and path.read_text().endswith("\n")
    remove_later_rollouts(tmp_path, 0)
    assert path.read_text() == ""


def test_a_run_without_rollouts_has_nothing_to_remove(tmp_path: Path) -> None:
    remove_later_rollouts(tmp_path, 0)
    assert not (tmp_path / ROLLOUTS).exists()


def test_a_link_is_refused(tmp_path: Path) -> None:
    other = write_log(tmp_path, 1).rename(tmp_path / "other.jsonl")
    (tmp_path / ROLLOUTS).symlink_to(other)
    with pytest.raises(UserError, match=ROLLOUTS):
        remove_later_rollouts(tmp_path, 0)
    assert other.read_text()


def make_model(dropout: float = 0.0, **given: Any) -> Model:
    return Model.model_validate({"source": "base", "lora": Lora(dropout=dropout), **given})


@pytest.mark.parametrize(
    ("parallel", "model", "key"),
    [
        (Parallel(tensor=2), make_model(), "parallel.tensor"),
        (Parallel(offload=True), make_model(), "parallel.offload"),
        (Parallel(), make_model(quantization="nf4"), "model.quantization"),
    ],
)
def test_settings_without_a_whole_copy_are_refused_by_name(parallel: Parallel, model: Model, key: str) -> None:
    with pytest.raises(UserError, match=f"^{key} does not work with llm_grpo, which copies the weights in each step"):
        check_settings(RECIPE, "llm_grpo", parallel, model)
    others: Any = dataclasses.replace(RECIPE, rollouts=None)
    check_settings(others, "llm_dpo", parallel, model)
    check_settings(RECIPE, "llm_grpo", Parallel(), make_model())


def test_dropout_of_adapters_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"^model\.lora\.dropout: 0\.05 does not work with llm_grpo: its answers are generated without"):
        check_settings(RECIPE, "llm_grpo", Parallel(), make_model(dropout=0.05))
    check_settings(dataclasses.replace(RECIPE, rollouts=None), "llm_dpo", Parallel(), make_model(dropout=0.05))


def test_a_number_that_could_not_be_read_again_is_an_error(tmp_path: Path) -> None:
    loop: Any = object.__new__(RolloutLoop)
    loop.__dict__.update(run_dir=tmp_path, shown=deque())
    with pytest.raises(UserError, match="a number in the rollouts of step 3 is not finite"):
        loop._write([{"step": 3, "reward": float("inf")}])
    assert not (tmp_path / ROLLOUTS).exists()
