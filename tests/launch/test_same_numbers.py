"""The same losses and gradient norms on 1, 2 and 4 processes, for every strategy and however a step is cut into micro-batches."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from overtone.recipes.voice_clone.model import tiny_checkpoint
from tests.launch.launching import voice_rows
from tests.launch.same_steps import STEPS, WORLDS, RunsOfCases

CASES = [
    {"parallel.strategy": strategy, "train.micro_tokens": micro, "train.precision": precision}
    for strategy, micro, precision in itertools.product(("ddp", "fsdp"), ("2048", "120"), ("fp32", "bf16"))
]
RAGGED = [
    {"parallel.strategy": strategy, "train.micro_tokens": "120", "train.precision": "fp32", "train.global_batch_tokens": "150"}
    for strategy in ("ddp", "fsdp")
]
LORA = {"parallel.strategy": "fsdp", "train.micro_tokens": "120", "train.precision": "fp32", "model.lora.rank": "4"}
RECOMPUTED = {
    "parallel.strategy": "fsdp",
    "train.micro_tokens": "120",
    "train.precision": "fp32",
    "train.activation_checkpointing": "full",
}
EVERY = [*CASES, *RAGGED, LORA, RECOMPUTED]
PLAIN = {"parallel.strategy": "ddp", "train.micro_tokens": "120", "train.precision": "fp32"}
LOSS = {"fp32": 5e-6, "bf16": 3e-3}
"""Largest absolute difference; measured spreads are a tenth of that (AdamW amplifies rounding from step to step)."""
NORM = {"fp32": 1e-5, "bf16": 3e-2}
"""Largest relative difference."""

Steps = list[dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunsOfCases:
    folder = tmp_path_factory.mktemp("same")
    tiny_checkpoint.build(folder / "nano")
    voice_rows(folder, ["Ann", "Bob", "Cid"], frames=(9, 40))
    given = {"model.source": folder / "nano", "data.train": folder / "train.jsonl"}
    return RunsOfCases(folder, "voice_clone", {name_of(case): case for case in EVERY}, given)


def name_of(case: dict[str, str]) -> str:
    return "-".join(case.values())


def places(cases: list[dict[str, str]]) -> list[Any]:
    """Each case on each number of processes, as parameters of a test. CI runs those of one and two processes."""
    return [
        pytest.param(world, case, id=f"{world}-{name_of(case)}", marks=[pytest.mark.slow, *([pytest.mark.ci] if world < 4 else [])])
        for world, case in itertools.product(WORLDS, cases)
    ]


def test_the_matrix_has_all_cases() -> None:
    assert len(CASES) == 8 and len(EVERY) == 12 and len({name_of(case) for case in EVERY}) == 12
    assert len(places(EVERY)) == 36 and sum(len(place.marks) == 2 for place in places(EVERY)) == 24


@pytest.mark.parametrize(("world", "case"), places(CASES))
def test_losses_and_norms_match_one_process(runs: RunsOfCases, world: int, case: dict[str, str]) -> None:
    compare(runs(world, name_of(case)), runs(1, name_of({**case, "parallel.strategy": "ddp"})), case["train.precision"])


@pytest.mark.parametrize(("world", "case"), places(CASES))
def test_one_micro_batch_or_several_give_the_same_step(runs: RunsOfCases, world: int, case: dict[str, str]) -> None:
    whole = runs(1, name_of({**case, "parallel.strategy": "ddp", "train.micro_tokens": "2048"}))
    compare(runs(world, name_of(case)), whole, case["train.precision"])


@pytest.mark.parametrize(("world", "case"), places(RAGGED))
def test_steps_with_fewer_micro_batches_than_ranks_match_one_process(runs: RunsOfCases, world: int, case: dict[str, str]) -> None:
    """Ranks left over take part with weight 0."""
    steps = runs(world, name_of(case))
    assert len({step["tokens"] for step in steps}) > 1, "the steps are not ragged"
    compare(steps, runs(1, name_of(RAGGED[0])), "fp32")


@pytest.mark.parametrize(("world", "case"), places([LORA, RECOMPUTED]))
def test_lora_and_activation_checkpointing_match_one_process(runs: RunsOfCases, world: int, case: dict[str, str]) -> None:
    compare(runs(world, name_of(case)), runs(1, name_of(case)), "fp32")


@pytest.mark.ci
@pytest.mark.slow
def test_activation_checkpointing_on_two_processes_matches_plain_training(runs: RunsOfCases) -> None:
    compare(runs(2, name_of(RECOMPUTED)), runs(1, name_of(PLAIN)), "fp32")


@pytest.mark.ci
@pytest.mark.slow
def test_bf16_stays_near_fp32(runs: RunsOfCases) -> None:
    halves = runs(2, name_of({**PLAIN, "parallel.strategy": "fsdp", "train.precision": "bf16"}))
    for half, full in zip(halves, runs(1, name_of(PLAIN)), strict=True):
        assert half["loss"] == pytest.approx(full["loss"], abs=5e-2)
        assert half["loss"] != full["loss"], "bf16 was not used"


def compare(found: Steps, expected: Steps, precision: str) -> None:
    assert len(found) == len(expected) == STEPS
    for one, other in zip(found, expected, strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["loss"] == pytest.approx(other["loss"], abs=LOSS[precision], rel=0)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=NORM[precision])
