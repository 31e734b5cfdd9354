"""Image classification through the engine: the same numbers on 1, 2 and 4 ranks, every strategy and cut, with LoRA, and after a kill."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from overtone.finetune.config import resolve
from overtone.finetune.distributed import process_group
from overtone.finetune.exporting import export
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.training.run import train
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import series
from tests.recipes.image_classification.tiny_images import make_config
from tests.reliability import victims
from tests.reliability.victims import Fault

STEPS = 3
WORLDS = (1, 2, 4)
PLAIN = {"parallel.strategy": "fsdp", "train.micro_tokens": "12"}
CASES = [
    PLAIN,
    {"parallel.strategy": "fsdp", "train.micro_tokens": "2"},
    {"parallel.strategy": "ddp", "train.micro_tokens": "3"},
    {"parallel.strategy": "zero2", "train.micro_tokens": "3"},
]
LORA = {"parallel.strategy": "fsdp", "train.micro_tokens": "3", "model.lora": "{rank: 4, alpha: 8}"}
RECOMPUTED = {"parallel.strategy": "fsdp", "train.micro_tokens": "3", "train.activation_checkpointing": "full"}
EVERY = [*CASES, LORA, RECOMPUTED]


class ImageRuns:
    """A folder of runs. Those of one and two ranks are trained when the first is requested; so are those of four."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_config(folder)

    def __call__(self, world: int, case: dict[str, str]) -> list[dict[str, Any]]:
        if not self.place(world, case).is_dir():
            groups = [(size, (self.overrides(size),)) for size in WORLDS if (size == 4) == (world == 4)]
            run_ranks(train_image_cases, groups, ["image_classification"], self.folder / f"witness-{world}")
        return series(self.place(world, case))

    def place(self, world: int, case: dict[str, str]) -> Path:
        return self.folder / f"{world}" / str(EVERY.index(case))

    def overrides(self, world: int) -> list[dict[str, str]]:
        shared = {
            **{"model.source": self.folder / "base", "data.train": self.folder / "train.jsonl", "data.val": self.folder / "val.jsonl"},
            **{"train.steps": STEPS, "train.lr": "2e-3", "train.precision": "fp32", "train.global_batch_tokens": 12},
            **{"options.jitter": 0.2, "options.label_smoothing": 0.1, "log.trackers": "[]"},
        }
        return [{key: str(value) for key, value in {**shared, "run.dir": self.place(world, case), **case}.items()} for case in EVERY]


def train_image_cases(cases: list[dict[str, str]]) -> None:
    """One run after the other, on this rank."""
    joined = process_group.join((), Path())
    folder = find_recipe("image_classification")
    recipe = load_recipe(folder)
    for overrides in cases:
        train(joined, resolve("image_classification", recipe.Options, [folder / "config.yaml"], overrides.items()), recipe)
    process_group.leave()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ImageRuns:
    return ImageRuns(tmp_path_factory.mktemp("images-same"))


def places(cases: list[dict[str, str]]) -> list[Any]:
    """Each case on each number of ranks, as parameters of a test. CI runs those of one and two."""
    return [
        pytest.param(
            world, case, id=f"{world}-{'-'.join(case.values())}", marks=[pytest.mark.slow, *([pytest.mark.ci] if world < 4 else [])]
        )
        for world, case in itertools.product(WORLDS, cases)
    ]


@pytest.mark.parametrize(("world", "case"), places([*CASES, RECOMPUTED]))
def test_every_world_and_cut_gives_the_same_steps(runs: ImageRuns, world: int, case: dict[str, str]) -> None:
    """Crops, mirror images and light are the same on any number of ranks and in any micro-batch."""
    compare(runs(world, case), runs(1, PLAIN))


@pytest.mark.parametrize(("world", "case"), places([LORA]))
def test_lora_with_a_new_head_matches_one_rank(runs: ImageRuns, world: int, case: dict[str, str]) -> None:
    compare(runs(world, case), runs(1, case))
    assert [step["loss"] for step in runs(1, case)] != [step["loss"] for step in runs(1, PLAIN)]


def compare(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) == STEPS
    for one, other in zip(found, expected, strict=True):
        assert one["tokens"] == other["tokens"] == 12
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5, rel=0)
        assert one["accuracy"] == other["accuracy"]
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.ci
def test_a_run_that_was_killed_while_saving_ends_with_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    make_config(tmp_path)

    def words(run: str) -> list[str]:
        own = {"model.source": "base", "data.train": "train.jsonl", "run.dir": run}
        rest = {"train.precision": "fp32", "train.steps": "6", "train.global_batch_tokens": "6", "train.micro_tokens": "3"}
        rest |= {"checkpoint.every": "2", "log.trackers": "[]", "train.lr": "2e-3"}
        named = {**{key: str(tmp_path / name) for key, name in own.items()}, **rest}
        return ["--recipe", "image_classification", *(word for key, value in named.items() for word in (f"--{key}", value))]

    victims.finish(tmp_path / "whole-witness", 2, words("whole"))
    commits = [number for number, operation in enumerate(victims.operations(tmp_path / "whole-witness")) if operation == "rename"]
    codes = victims.wait(victims.start(tmp_path / "witness", 2, words("killed"), Fault(rank=0, number=commits[1])))
    assert -9 in codes, victims.said(tmp_path / "witness")
    victims.finish(tmp_path / "again-witness", 2, words("killed"))
    assert [event["step"] for event in series(tmp_path / "killed", "resumed")] == [2], "the save of step 4 was not committed"
    assert series(tmp_path / "killed")[-1]["step"] == 6
    found, expected = (
        load_file(export.export(tmp_path / run, tmp_path / f"{run}-export") / "model.safetensors") for run in ("killed", "whole")
    )
    assert found.keys() == expected.keys() and all(torch.equal(found[name], value) for name, value in expected.items())
