"""The same runs on 1, 2 and 4 ranks: each case of overrides must take the same steps on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.distributed import process_group
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.training.run import train
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import series

STEPS = 3
WORLDS = (1, 2, 4)
Case = dict[str, str]
SHARED = {
    "train.steps": STEPS,
    "train.lr": "1e-3",
    "train.precision": "fp32",
    "train.global_batch_tokens": 10**6,  # a step is the whole epoch, so that every cut into micro-batches is the same step
    "log.trackers": "[]",
}


class RunsOfCases:
    """The runs of a recipe in a folder. Those of one and two ranks are trained when the first is requested; so are those of four."""

    def __init__(self, folder: Path, recipe: str, cases: Mapping[str, Case], given: Mapping[str, object]) -> None:
        """`cases`: by name. `given`: overrides of all runs besides `SHARED`."""
        self.folder, self.recipe, self.cases, self.given = folder, recipe, cases, given

    def __call__(self, world: int, case: str) -> list[dict[str, Any]]:
        """The steps of a run."""
        if not self.place(world, case).is_dir():
            groups = [(size, (self.recipe, self.overrides(size))) for size in WORLDS if (size == 4) == (world == 4)]
            run_ranks(train_cases, groups, [self.recipe], self.folder / f"witness-{world}")
        return series(self.place(world, case))

    def place(self, world: int, case: str) -> Path:
        return self.folder / f"{world}" / case

    def overrides(self, world: int) -> list[Case]:
        todo = {name: case for name, case in self.cases.items() if world in worlds_of(case)}
        merged = [{**SHARED, **self.given, "run.dir": self.place(world, name), **case} for name, case in todo.items()]
        return [{key: str(value) for key, value in one.items()} for one in merged]


def worlds_of(case: Case) -> tuple[int, ...]:
    """The numbers of ranks that a case can have."""
    return tuple(world for world in WORLDS if world >= int(case.get("parallel.tensor", 1)))


def train_cases(recipe_name: str, cases: list[Case]) -> None:
    """One run after the other, on this rank."""
    joined = process_group.join((), Path())
    folder = find_recipe(recipe_name)
    recipe = load_recipe(folder)
    for overrides in cases:
        train(joined, resolve(recipe_name, recipe.Options, [folder / "config.yaml"], overrides.items()), recipe)
    process_group.leave()


def cases_on_ranks(cases: Mapping[str, Case], chosen: Callable[[str], bool] = lambda _: True) -> list[Any]:
    """Number of ranks and name of each chosen case, as parameters of a test. CI runs those of one and two."""
    return [
        pytest.param(world, name, id=f"{world}-{name}", marks=[pytest.mark.slow, *([pytest.mark.ci] if world < 4 else [])])
        for name, case in cases.items()
        if chosen(name)
        for world in worlds_of(case)
    ]


def compare_steps(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) == STEPS
    for one, other in zip(found, expected, strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5, rel=0)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-5)
