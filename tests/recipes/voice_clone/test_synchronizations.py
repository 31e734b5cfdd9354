"""A step waits for the GPU once, when its numbers decide whether it is applied; a micro-batch never waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.training import setup
from overtone.recipes.voice_clone.recipe import RECIPE
from tests.finetune.synchronizations import report, waits_of_steps

EVERYTHING_RANDOM = (("options.sub_frames", "0.5"), ("options.frame_dropout", "0.2"), ("train.activation_checkpointing", "selective"))


@pytest.mark.parametrize("overrides", [(), EVERYTHING_RANDOM], ids=["defaults", "frame sampling, frame dropout, activation checkpointing"])
def test_a_step_synchronizes_with_the_gpu_once_and_a_micro_batch_never(
    overrides: tuple[tuple[str, str], ...], tmp_path: Path, nano: Path, corpus: Callable[..., Any], rows_of: Callable[..., Any]
) -> None:
    made = corpus(tmp_path / "data", rows_of({"Anna": "high.flac", "Bert": "low.flac"}))
    sizes = (("train.steps", "2"), ("train.micro_tokens", "40"), ("train.global_batch_tokens", "120"))
    world = join((), tmp_path)
    try:
        training, _ = setup.build(made.config(nano, *sizes, *overrides), RECIPE, world)
        waits = waits_of_steps(training, 2)
    finally:
        leave()
    for found in waits:
        assert len(found) == 1 and found[0].place.startswith("overtone/finetune/training/step.py"), report(found)
