"""Tests that a step waits for the GPU once, when its results decide whether it is applied, and that micro-batches never wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.training import setup
from overtone.recipes.llm_sft.recipe import RECIPE
from tests.finetune.synchronizations import report, waits_of_steps
from tests.recipes.llm_sft import tiny_runs

PACKED = (("data.packing", "true"), ("train.micro_tokens", "130"))


@pytest.mark.parametrize("overrides", [(), PACKED], ids=["padded", "packed"])
def test_a_step_waits_once_and_a_micro_batch_never(overrides: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    base = tiny_runs.write_base(tmp_path / "base")
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tiny_runs.rows() * 20))
    given = {
        "run.dir": tmp_path / "run",
        "model.source": base,
        "data.train": tmp_path / "chats.jsonl",
        "train.steps": 2,
        "train.micro_tokens": 60,
        "train.global_batch_tokens": 365,
        "log.trackers": "[]",
        **dict(overrides),
    }
    config = resolve("llm_sft", RECIPE.Options, [], [(key, str(value)) for key, value in given.items()])
    world = join((), tmp_path)
    try:
        training, _ = setup.build(config, RECIPE, world)
        waits = waits_of_steps(training, 2)
    finally:
        leave()
    for found in waits:
        assert len(found) == 1 and found[0].place.startswith("overtone/finetune/training/step.py"), report(found)
