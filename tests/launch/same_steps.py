"""The same runs on 1, 2 and 4 ranks: each case of overrides must take the same steps on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
ChangedCase = tuple[int, str, Case]
"""Number of ranks, name of the run on one rank to compare with, and what is changed."""
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


class ChangedRuns:
    """The runs of a recipe in a folder: each name on one rank, and with changes on several. Those of a number of ranks are trained when the
    first of them is requested, with the defaults of the config and not those of the recipe's config.yaml."""

    def __init__(
        self, folder: Path, recipe: str, names: Iterable[str], changed: Sequence[ChangedCase], given: Callable[[str], Mapping[str, object]]
    ) -> None:
        """`given`: name → the overrides of its runs, besides `run.dir`."""
        self.folder, self.recipe, self.given = folder, recipe, given
        self.cases: list[ChangedCase] = [*((1, name, {}) for name in names), *changed]

    def __call__(self, world: int, name: str, changes: Case) -> list[dict[str, Any]]:
        """The steps of a run."""
        witness = self.folder / f"witness-{world}"
        if not witness.is_dir():
            todo = [self.overrides(*case) for case in self.cases if case[0] == world]
            run_ranks(train_cases, [(world, (self.recipe, todo, False))], [self.recipe], witness)
        return series(self.place(world, name, changes))

    def place(self, world: int, name: str, changes: Case) -> Path:
        return self.folder / " ".join([str(world), name, *changes.values()])

    def overrides(self, world: int, name: str, changes: Case) -> Case:
        merged = {**self.given(name), "run.dir": self.place(world, name, changes), **changes}
        return {key: str(value) for key, value in merged.items()}


def worlds_of(case: Case) -> tuple[int, ...]:
    """The numbers of ranks that a case can have."""
    return tuple(world for world in WORLDS if world >= int(case.get("parallel.tensor", 1)))


def train_cases(recipe_name: str, cases: list[Case], with_config_file: bool = True) -> None:
    """One run after the other, on this rank. `with_config_file`: with the defaults of the recipe's config.yaml."""
    joined = process_group.join((), Path())
    folder = find_recipe(recipe_name)
    recipe = load_recipe(folder)
    for overrides in cases:
        train(joined, resolve(recipe_name, recipe.Options, [folder / "config.yaml"] if with_config_file else [], overrides.items()), recipe)
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
