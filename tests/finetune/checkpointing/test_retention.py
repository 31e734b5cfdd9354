"""Which checkpoints are kept besides the newest: the best by a metric, and some over the whole run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.checkpoint_metadata import parse_state
from overtone.finetune.checkpointing.retention import SPREAD, BestBy, choose_best, choose_best_step, choose_spread, describe_keep
from overtone.finetune.storage.files import json_bytes
from tests.finetune import tiny

NOWHERE = Path("nowhere")
"""A run without measured samples."""


def states(evaluations: dict[int, dict[str, float]], best_by: str | None = None) -> dict[str, dict[str, Any]]:
    made = {step: {"evaluation": found, "validation_loss": found.get("loss"), "best_by": best_by} for step, found in evaluations.items()}
    return {f"step-{step:08d}": parse_state(json_bytes(tiny.state(step, **changes))) for step, changes in made.items()}


@pytest.mark.parametrize(
    ("best_by", "best"), [(None, 3), ("loss min", 3), ("loss max", 1), ("accuracy max", 2), ("accuracy min", 1), ("pace min", None)]
)
def test_the_best_is_kept_by_its_metric(best_by: str | None, best: int | None) -> None:
    found = states(
        {1: {"loss": 3.0, "accuracy": 0.1}, 2: {"loss": 2.0, "accuracy": 0.9}, 3: {"loss": 1.0, "accuracy": 0.9}, 4: {}}, best_by
    )
    assert choose_best(found, BestBy.parse(best_by)) == (None if best is None else f"step-{best:08d}")
    gone = checkpoint.choose_surplus(found, 2, "step-00000004", NOWHERE)
    assert {checkpoint.step_of(Path(name)) for name in gone} == {1, 2} - {best}


@pytest.mark.parametrize(("digests", "kept"), [("aaa", 1), ("abb", 2), ("aab", 3), (("a", None, "b"), 2), ((None, "a", "a"), 1)])
def test_the_best_on_other_validation_rows_is_not_kept(digests: Any, kept: int) -> None:
    """The losses rise from 1 to 3, so the first is the best as long as it may be compared with the newest."""
    found = {
        f"step-{step:08d}": parse_state(json_bytes(tiny.state(step, evaluation={"loss": float(step)}, validation=digest)))
        for step, digest in enumerate(digests, start=1)
    }
    gone = checkpoint.choose_surplus({**found, "step-00000004": {**found["step-00000003"], "evaluation": {}}}, 1, "step-00000004", NOWHERE)
    assert {checkpoint.step_of(Path(name)) for name in gone} == {1, 2, 3} - {kept}


@given(st.sets(st.integers(1, 3000), min_size=1, max_size=60), st.data())
def test_what_is_spread_does_not_depend_on_when_it_was_pruned(saved: set[int], data: Any) -> None:
    kept: set[int] = set()
    for step in sorted(saved):
        kept.add(step)
        if data.draw(st.booleans()):  # not every launch lives to prune
            kept = choose_spread(kept) | {step}
    assert choose_spread(kept) == choose_spread(saved) and len(choose_spread(saved)) <= SPREAD


def test_checkpoints_are_spread_over_the_whole_run() -> None:
    for last in (800, 1700, 20_000, 99_900):
        kept = sorted(choose_spread(range(100, last + 1, 100)))
        assert SPREAD // 2 < len(kept) <= SPREAD and kept[0] == 100 and kept[-1] > 0.7 * last
        assert max(b - a for a, b in pairwise(kept)) <= last / 3
    assert choose_spread([10, 20, 30]) == {10, 20, 30} and choose_spread([7, 8, 9, 63]) == {7, 8, 63} and choose_spread([]) == set()


def test_spread_keeps_the_two_newest_and_the_best() -> None:
    evaluations = {step: {"loss": 5.0 if step != 37 else 1.0} for step in range(1, 101)}
    gone = {checkpoint.step_of(Path(name)) for name in checkpoint.choose_surplus(states(evaluations), "spread", "step-00000100", NOWHERE)}
    assert {*evaluations} - gone == choose_spread(evaluations) | {37, 99, 100}
    assert describe_keep("spread") == "the newest 2 and up to 8 over the whole run" and describe_keep(3) == "the newest 3"


def test_the_best_step_is_the_first_of_equal_ones() -> None:
    values = {4: 1.0, 2: 1.0, 6: 3.0}
    found = (choose_best_step(values, BestBy()), choose_best_step(values, BestBy("accuracy", True)), choose_best_step({}, BestBy()))
    assert found == (2, 6, None)
