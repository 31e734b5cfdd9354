"""`train.base_distance` gives the same numbers on 1, 2 and 4 processes, under every strategy, with adapters and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.distributed import process_group
from overtone.finetune.recipe import BASE_DISTANCE, find_recipe, load_recipe
from overtone.finetune.training.run import train
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import series
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
SHARDED: list[tuple[int, str, dict[str, str]]] = [
    *((2, name, {"parallel.strategy": "fsdp"}) for name in ALONE),
    *((world, name, {"parallel.strategy": "ddp", "train.micro_tokens": "96"}) for world in (2, 4) for name in ("full", "lora")),
    *((2, name, {"parallel.strategy": zero}) for zero in ("zero1", "zero2") for name in ("full", "lora")),
    *((4, name, {"parallel.strategy": "hsdp", "parallel.replicate": "2"}) for name in ("full", "lora")),
    *((4, name, {"parallel.strategy": "fsdp", "parallel.tensor": "2"}) for name in ("full", "full, untied", "lora")),
    *((2, name, {"parallel.strategy": "fsdp", "train.activation_checkpointing": "full"}) for name in ("full", "lora")),
    (2, "lora", {"parallel.strategy": "fsdp", "train.activation_checkpointing": "selective"}),
    (2, "lora", {"parallel.strategy": "fsdp", "options.attention": "eager", "train.micro_tokens": "96"}),
]  # fmt: skip


def list_overrides(folder: Path, world: int) -> list[dict[str, str]]:
    """The runs of this many processes, each by its keys."""
    cases = [(name, dict[str, str]()) for name in ALONE] if world == 1 else [case[1:] for case in SHARDED if case[0] == world]
    found = []
    for name, changes in cases:
        keys = {
            **{"data.train": folder / "chats.jsonl", "run.dir": find_run(folder, world, name, changes), "train.steps": STEPS},
            **{"train.global_batch_tokens": 10**6, "train.micro_tokens": 400, "train.lr": "1e-2", "train.precision": "fp32"},
            **{"train.warmup": 0.0, "train.base_distance": 0.5, "log.trackers": "[]", "parallel.strategy": "ddp"},
            **ALONE[name],
            **changes,
        }
        keys["model.source"] = folder / keys.get("model.source", "tied")
        found.append({key: str(value) for key, value in keys.items()})
    return found


def find_run(folder: Path, world: int, name: str, changes: dict[str, str]) -> Path:
    return folder / " ".join([str(world), name, *changes.values()])


def train_cases(cases: list[dict[str, str]]) -> None:
    """One run after the other, on this rank."""
    joined = process_group.join((), Path())
    recipe = load_recipe(find_recipe("llm_sft"))
    for overrides in cases:
        train(joined, resolve("llm_sft", recipe.Options, [], overrides.items()), recipe)
    process_group.leave()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bases and the data; the runs of each number of processes are trained when the first is requested."""
    found = tmp_path_factory.mktemp("base distance")
    for name in ("tied", "untied"):
        (found / name).mkdir()
        tiny_runs.write_base(found / name, tied=name == "tied")
    (found / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHATS))
    return found


def read_run(folder: Path, world: int, name: str, changes: dict[str, str]) -> list[dict[str, Any]]:
    """The steps of a run."""
    if not (folder / f"witness-{world}").is_dir():
        run_ranks(train_cases, [(world, (list_overrides(folder, world),))], ["llm_sft"], folder / f"witness-{world}")
    return series(find_run(folder, world, name, changes))


def place(world: int, name: str, changes: dict[str, str]) -> Any:
    """A case as parameters of a test. CI runs those of two processes."""
    marks = [pytest.mark.slow, *([pytest.mark.ci] if world == 2 else [])]
    return pytest.param(world, name, changes, id=f"{world} {name} {' '.join(changes.values())}", marks=marks)


@pytest.mark.parametrize(("world", "name", "changes"), [place(*case) for case in SHARDED])
def test_sharded_runs_match_one_process(folder: Path, world: int, name: str, changes: dict[str, str]) -> None:
    found, expected = read_run(folder, world, name, changes), read_run(folder, 1, name, {})
    assert len(found) == len(expected) == STEPS
    assert expected[0][BASE_DISTANCE] == 0 and expected[-1][BASE_DISTANCE] > 0.01
    for one, other in zip(found, expected, strict=True):
        compare(one, other)


def compare(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["loss"] == pytest.approx(other["nll"] + 0.5 * other[BASE_DISTANCE], abs=2e-5)
    assert one["nll"] == pytest.approx(other["nll"], abs=2e-5)
    assert one[BASE_DISTANCE] == pytest.approx(other[BASE_DISTANCE], abs=2e-5)
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
