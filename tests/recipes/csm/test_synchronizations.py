"""A step waits for the GPU once, when its numbers decide whether it is applied; a micro-batch never waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.training import setup
from overtone.recipes.csm.recipe import RECIPE
from tests.finetune.synchronizations import report, waits_of_steps
from tests.recipes.csm.tiny_csm import make_config, make_rows, write_rows

RANDOM = (("options.depth_share", "0.5"), ("train.activation_checkpointing", "selective"))


@pytest.mark.parametrize("overrides", [(), RANDOM], ids=["defaults", "depth share, activation checkpointing"])
def test_a_step_synchronizes_with_the_gpu_once_and_a_micro_batch_never(
    overrides: tuple[tuple[str, str], ...], tmp_path: Path, tiny: Path
) -> None:
    train = write_rows(tmp_path / "data" / "train.jsonl", make_rows(["Ann", "Bob"]))
    sizes = (("train.steps", "2"), ("train.micro_tokens", "60"), ("train.global_batch_tokens", "130"))
    world = join((), tmp_path)
    try:
        config = make_config(tiny, train, *sizes, *overrides)
        RECIPE.prepare(config)
        training, _ = setup.build(config, RECIPE, world)
        waits = waits_of_steps(training, 2)
    finally:
        leave()
    for found in waits:
        assert len(found) == 1 and found[0].place.startswith("overtone/finetune/training/step.py"), report(found)
