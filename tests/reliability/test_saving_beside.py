"""Saves during training, whose collectives run at the same time: no deadlock, and the same gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledger import record
from tests.reliability import slow_disk, victims

RANKS, PATIENCE = 2, 900.0
"""Seconds after which a run counts as hanging."""


def run_through(folder: Path, name: str, steps: int, every: int) -> Path:
    argv = victims.arguments(
        folder, "--run.dir", folder / name / "run", "--train.steps", steps, "--checkpoint.every", every, "--checkpoint.keep", 2,
        "--parallel.strategy", "fsdp", "--options.dropout", 0.2, "--log.trackers", "[]",
    )  # fmt: skip
    codes = victims.wait(slow_disk.begin(folder / name / "witness", RANKS, argv), PATIENCE)
    assert codes == [0] * RANKS, victims.said(folder / name / "witness")
    return folder / name


def compare(folder: Path, steps: int, every: int) -> int:
    """Returns the steps that were trained beside a save, on the rank that had the fewest."""
    without, beside = run_through(folder, "without", steps, 10**6), run_through(folder, "beside", steps, every)
    assert victims.losses(beside / "run") == victims.losses(without / "run") and len(victims.losses(beside / "run")) == steps
    assert victims.weights(beside / "run") == victims.weights(without / "run")
    committed = [event["step"] for event in victims.events(beside / "run", "committed")]
    assert len(committed) >= steps // every, "each save was committed"
    assert [slow_disk.steps_beside(without / "witness", rank) for rank in range(RANKS)] == [0] * RANKS
    return min(slow_disk.steps_beside(beside / "witness", rank) for rank in range(RANKS))


@pytest.mark.slow
def test_saves_during_training_change_no_number(tmp_path: Path) -> None:
    assert compare(tmp_path, 24, 4) > 0


@pytest.mark.slow
def test_hundreds_of_steps_beside_saves(tmp_path: Path) -> None:
    steps, every = 400, 3
    beside = compare(tmp_path, steps, every)
    assert beside >= steps / 4, "training went on while saves were written"
    record(
        "asynchronous saves beside running collectives: no hang, the same losses, gradient norms and weights, bit by bit",
        steps // every, 0, f"{beside} of {steps} steps beside a save",
    )  # fmt: skip
