"""Evaluation is the plain mean over all rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from finetune import evaluation
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


@pytest.mark.parametrize("size", [2, 4])
def test_what_a_rank_without_rows_runs_along_counts_for_nothing(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Five micro-batches on two ranks or four: collectives need everyone, so who has none left runs a row again.

    The ranks take their turns here one after the other, since evaluation leaves no trace; what they would sum is summed by hand.
    """
    rows = tiny.texts(13, seed=5)
    val = tiny.write_rows(tmp_path / "val.jsonl", rows)
    training, _ = tiny.built(
        world, tiny.config_in(tmp_path, ("data.val", str(val)), ("parallel.strategy", "fsdp"), ("train.micro_tokens", "80"))
    )
    assert training.val is not None and len(evaluation._in_order(training.val, 80)) == 5
    of_ranks: list[list[float]] = []
    monkeypatch.setattr(evaluation, "data_sums", lambda _, values: of_ranks.append(values) or values)
    for rank in range(size):
        evaluate(dataclasses.replace(training, world=dataclasses.replace(world, rank=rank, size=size)), training.val, StopRequests())
    assert len(of_ranks) == size and [len(values) for values in of_ranks] == [4] * size
    sums, counts = plain_terms(reference(training), rows)
    *totals, after_next, following = (sum(values) for values in zip(*of_ranks, strict=True))
    assert {"after_next": after_next, "next": following} == counts
    assert totals == [pytest.approx(float(sums[name].detach()), rel=1e-6) for name in ("after_next", "next")]
