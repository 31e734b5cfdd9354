"""`overtone.plan`: what the verb `plan` knows, as values."""

from __future__ import annotations

from pathlib import Path

import pytest

import overtone
from overtone.finetune.planning import meta_device_estimate
from tests.finetune import tiny
from tests.recipes.llm_sft.tiny_runs import write_base

RECIPE = str(tiny.FOLDER)


def make_settings(folder: Path, **more: object) -> dict[str, object]:
    config = tiny.config_in(folder)
    return {"run.dir": folder / "run", "model.source": config.model.source, "data.train": config.data.train, **more}


def test_a_plan_has_steps_time_memory_and_the_command_for_all_gpus(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, **{"train.epochs": 10, "model.lora": {"rank": 4}})
    plan = overtone.plan(RECIPE, settings, gpu="l4", gpus=2)
    assert plan.problems == () and plan.fits and plan.memory is not None and 1 < plan.memory < 22
    assert plan.steps is not None and plan.steps > 1 and plan.seconds is not None and plan.seconds > 0
    assert plan.largest_micro_batch is not None and plan.largest_micro_batch > 100 and plan.strategy == "ddp"
    assert plan.command is not None and plan.command.startswith("accelerate launch --config_file configs/ddp.yaml --num_processes 2 ")
    assert "--model.lora '{rank: 4}'" in plan.command and "--train.epochs 10" in plan.command
    assert "2 × l4 (22 GiB)" in str(plan) and str(plan).endswith("no problems found")


def test_a_plan_without_data_has_no_steps(tmp_path: Path) -> None:
    plan = overtone.plan("llm_sft", {"model.source": write_base(tmp_path / "base")})
    assert plan.steps is None and plan.seconds is None and plan.memory is not None and "no data yet" in plan.report


def test_what_cannot_be_estimated_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("depends on values")

    monkeypatch.setattr(meta_device_estimate, "trace_step", fail)
    plan = overtone.plan(RECIPE, make_settings(tmp_path, **{"train.steps": 7}))
    assert (plan.memory, plan.fits, plan.largest_micro_batch, plan.strategy, plan.command, plan.seconds) == (None,) * 6
    assert plan.steps == 7 and plan.report.startswith("no estimate of memory and time: ") and "depends on values" in plan.report


def test_problems_are_listed_and_mistakes_are_raised(tmp_path: Path) -> None:
    plan = overtone.plan(RECIPE, make_settings(tmp_path, **{"train.patience": 3}))
    assert len(plan.problems) == 1 and plan.problems[0].startswith("train.patience is set, but there are no evaluations")
    with pytest.raises(overtone.UserError, match="--gpu l5: unknown"):
        overtone.plan(RECIPE, make_settings(tmp_path), gpu="l5")
    with pytest.raises(overtone.UserError, match=r"settings\['train\.lrr'\]: unknown key"):
        overtone.plan(RECIPE, make_settings(tmp_path, **{"train.lrr": 3}))
