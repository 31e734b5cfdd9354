"""`train.base_distance` gives the same numbers on 1, 2 and 4 processes, under every strategy, with adapters and without."""

from __future__ import annotations

import json
from typing import Any

import pytest

from overtone.finetune.recipe import BASE_DISTANCE
from tests.launch.same_steps import ChangedCase, ChangedRuns
from tests.recipes.llm_sft import tiny_runs

STEPS = 4
CHATS = [
    {"messages": [{"role": "user", "content": f"Number {count}?"}, {"role": "assistant", "content": "yes " * count}]}
    for count in range(1, 9)
]
LORA = {"model.lora": "{rank: 4, alpha: 8}", "train.lr": "3e-2"}
ALONE: dict[str, dict[str, str]] = {
    "full": {},
    "full, untied": {"model.source": "untied"},
    "lora": LORA,
    "dora": {**LORA, "model.lora": "{rank: 4, alpha: 8, dora: true}"},
    "lora, packed": {**LORA, "data.packing": "true"},
}
"""Runs to compare with: one process, `ddp`. Steps of the first four are a whole epoch, so that every cut into micro-batches is the same
step."""
SHARDED: list[ChangedCase] = [
    *((2, name, {"parallel.strategy": "fsdp"}) for name in ALONE),
    *((world, name, {"parallel.strategy": "ddp", "train.micro_tokens": "96"}) for world in (2, 4) for name in ("full", "lora")),
    *((2, name, {"parallel.strategy": zero}) for zero in ("zero1", "zero2") for name in ("full", "lora")),
    *((4, name, {"parallel.strategy": "hsdp", "parallel.replicate": "2"}) for name in ("full", "lora")),
    *((4, name, {"parallel.strategy": "fsdp", "parallel.tensor": "2"}) for name in ("full", "full, untied", "lora")),
    *((2, name, {"parallel.strategy": "fsdp", "train.activation_checkpointing": "full"}) for name in ("full", "lora")),
    (2, "lora", {"parallel.strategy": "fsdp", "train.activation_checkpointing": "selective"}),
    (2, "lora", {"parallel.strategy": "fsdp", "options.attention": "eager", "train.micro_tokens": "96"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ChangedRuns:
    folder = tmp_path_factory.mktemp("base distance")
    for name in ("tied", "untied"):
        (folder / name).mkdir()
        tiny_runs.write_base(folder / name, tied=name == "tied")
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHATS))
    shared = {
        **{"data.train": folder / "chats.jsonl", "train.steps": STEPS, "model.source": "tied", "train.base_distance": 0.5},
        **{"train.global_batch_tokens": 10**6, "train.micro_tokens": 400, "train.lr": "1e-2", "train.precision": "fp32"},
        **{"train.warmup": 0.0, "log.trackers": "[]", "parallel.strategy": "ddp"},
    }

    def given(name: str) -> dict[str, object]:
        keys = {**shared, **ALONE[name]}
        return {**keys, "model.source": folder / str(keys["model.source"])}

    return ChangedRuns(folder, "llm_sft", ALONE, SHARDED, given)


def place(world: int, name: str, changes: dict[str, str]) -> Any:
    """A case as parameters of a test. CI runs those of two processes."""
    marks = [pytest.mark.slow, *([pytest.mark.ci] if world == 2 else [])]
    return pytest.param(world, name, changes, id=f"{world} {name} {' '.join(changes.values())}", marks=marks)


@pytest.mark.parametrize(("world", "name", "changes"), [place(*case) for case in SHARDED])
def test_sharded_runs_match_one_process(runs: ChangedRuns, world: int, name: str, changes: dict[str, str]) -> None:
    found, expected = runs(world, name, changes), runs(1, name, {})
    assert len(found) == len(expected) == STEPS
    assert expected[0][BASE_DISTANCE] == 0 and expected[-1][BASE_DISTANCE] > 0.01
    for one, other in zip(found, expected, strict=True):
        compare(one, other)


def compare(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["loss"] == pytest.approx(other["nll"] + 0.5 * other[BASE_DISTANCE], abs=2e-5)
    assert one["nll"] == pytest.approx(other["nll"], abs=2e-5)
    assert one[BASE_DISTANCE] == pytest.approx(other[BASE_DISTANCE], abs=2e-5)
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
