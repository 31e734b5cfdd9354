"""Evaluation is the plain mean over all rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.evaluation import evaluate
from finetune.guards import StopRequests
from finetune.world import World
from tests.finetune import tiny
from tests.finetune.plain import plain_loss, plain_terms, reference


def test_evaluation_is_the_plain_mean_and_leaves_no_trace(tmp_path: Path, world: World) -> None:
    val = tiny.write_rows(tmp_path / "val.jsonl", tiny.texts(13, seed=5))
    training, _ = tiny.built(
        world, tiny.config_in(tmp_path, ("data.val", str(val)), ("options.dropout", "0.5"), ("parallel.strategy", "fsdp"))
    )
    model = reference(training)
    assert training.val is not None
    numbers = evaluate(training, training.val, StopRequests())
    rows = tiny.texts(13, seed=5)
    assert numbers["loss"] == pytest.approx(float(plain_loss(model, rows).detach()), rel=1e-6), "dropout is off"
    sums, counts = plain_terms(model, rows)
    assert numbers["after_next"] == pytest.approx(float(sums["after_next"].detach()) / counts["after_next"], rel=1e-6)
    assert all(module.training for module in training.model.modules())
    assert all(parameter.grad is None and hasattr(parameter, "full_tensor") for parameter in training.model.parameters())
    assert evaluate(training, training.val, StopRequests()) == numbers
