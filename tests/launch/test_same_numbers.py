"""The same losses and gradient norms on 1, 2 and 4 processes, for every strategy and however a step is cut into micro-batches."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from recipes.voice_clone import tiny
from tests.launch.launching import launch, series, voice_rows

STEPS = 3
WORLDS = (1, 2, 4)
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
LOSS = {"fp32": 5e-6, "bf16": 3e-3}
"""Largest absolute difference; measured spreads are a tenth of that (AdamW amplifies rounding from step to step)."""
NORM = {"fp32": 1e-5, "bf16": 3e-2}
"""Largest relative difference."""

Series = dict[tuple[int, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """Each case on each world: (world, case) → its steps."""
    folder = tmp_path_factory.mktemp("same")
    tiny.build(folder / "nano")
    voice_rows(folder, ["Ann", "Bob", "Cid"], frames=(9, 40))
    found: Series = {}
    for world in WORLDS:
        cases = {name_of(case): case for case in EVERY}
        todo = []
        for name, case in cases.items():
            given = {
                "model.source": folder / "nano",
                "data.train": folder / "train.jsonl",
                "run.dir": folder / f"{world}" / name,
                "train.steps": STEPS,
                "train.lr": "1e-3",
                "train.global_batch_tokens": 10**6,  # a step is the whole epoch, so that every cut into micro-batches is the same step
                "log.trackers": "[]",
            }
            overrides = {key: str(value) for key, value in {**given, **case}.items()}
            todo.append({"recipe": "voice_clone", "files": [], "overrides": overrides})
        (folder / "cases.json").write_text(json.dumps(todo))
        launch("cpu", world, "tests/launch/many_cases.py", folder / "cases.json")
        found |= {(world, name): series(folder / f"{world}" / name) for name in cases}
    return found


def name_of(case: dict[str, str]) -> str:
    return "-".join(case.values())


def test_the_matrix_is_whole(runs: Series) -> None:
    assert len(CASES) == 8 and len(runs) == len(WORLDS) * len(EVERY) == 36
    assert all(len(steps) == STEPS for steps in runs.values())


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("world", WORLDS)
def test_losses_and_norms_are_those_of_one_process(runs: Series, case: dict[str, str], world: int) -> None:
    compare(runs[world, name_of(case)], runs[1, name_of({**case, "parallel.strategy": "ddp"})], case["train.precision"])


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("world", WORLDS)
def test_one_micro_batch_or_several_is_the_same_step(runs: Series, case: dict[str, str], world: int) -> None:
    whole = runs[1, name_of({**case, "parallel.strategy": "ddp", "train.micro_tokens": "2048"})]
    compare(runs[world, name_of(case)], whole, case["train.precision"])


@pytest.mark.parametrize("case", RAGGED, ids=name_of)
@pytest.mark.parametrize("world", WORLDS)
def test_steps_with_fewer_micro_batches_than_ranks(runs: Series, case: dict[str, str], world: int) -> None:
    """Ranks left over take part with weight 0."""
    steps = runs[world, name_of(case)]
    assert len({step["tokens"] for step in steps}) > 1, "the steps are not ragged"
    compare(steps, runs[1, name_of(RAGGED[0])], "fp32")


@pytest.mark.parametrize("case", [LORA, RECOMPUTED], ids=name_of)
@pytest.mark.parametrize("world", WORLDS)
def test_lora_and_recomputation_too(runs: Series, case: dict[str, str], world: int) -> None:
    compare(runs[world, name_of(case)], runs[1, name_of(case)], "fp32")


def test_recomputation_changes_nothing(runs: Series) -> None:
    compare(runs[2, name_of(RECOMPUTED)], runs[1, "ddp-120-fp32"], "fp32")


def test_bf16_stays_near_fp32(runs: Series) -> None:
    for half, full in zip(runs[2, "fsdp-120-bf16"], runs[1, "ddp-120-fp32"], strict=True):
        assert half["loss"] == pytest.approx(full["loss"], abs=5e-2)
        assert half["loss"] != full["loss"], "bf16 was not used"


def compare(found: list[dict[str, Any]], expected: list[dict[str, Any]], precision: str) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["loss"] == pytest.approx(other["loss"], abs=LOSS[precision], rel=0)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=NORM[precision])
