"""Whisper through the engine: the same numbers on 1 and 2 ranks, with every strategy and cut, with adapters, masks and a frozen encoder."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.distributed import process_group
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.training.run import train
from overtone.recipes.whisper.model import tiny_checkpoint
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import series
from tests.recipes.whisper.tiny_whisper import write_clips

pytestmark = [pytest.mark.slow, pytest.mark.ci]
STEPS = 3
WORLDS = (1, 2)
PLAIN = {"parallel.strategy": "fsdp", "train.micro_tokens": "4"}
SAME = [
    PLAIN,
    {"parallel.strategy": "fsdp", "train.micro_tokens": "1"},
    {"parallel.strategy": "ddp", "train.micro_tokens": "2"},
    {"parallel.strategy": "zero2", "train.micro_tokens": "2"},
    {"parallel.strategy": "fsdp", "train.micro_tokens": "2", "train.activation_checkpointing": "full"},
]
OTHERS = [
    {"parallel.strategy": "fsdp", "train.micro_tokens": "2", "model.lora": "{rank: 4, alpha: 8, dora: true}"},
    {"parallel.strategy": "fsdp", "train.micro_tokens": "2", "options.freeze_encoder": "true"},
    {"parallel.strategy": "ddp", "train.micro_tokens": "2", "train.base_distance": "0.5"},
]
EVERY = [*SAME, *OTHERS]


def train_whisper_cases(cases: list[dict[str, str]]) -> None:
    """One run after the other, on this rank."""
    joined = process_group.join((), Path())
    folder = find_recipe("whisper")
    recipe = load_recipe(folder)
    for overrides in cases:
        train(joined, resolve("whisper", recipe.Options, [folder / "config.yaml"], overrides.items()), recipe)
    process_group.leave()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each case on each number of ranks."""
    folder = tmp_path_factory.mktemp("whisper-same")
    tiny_checkpoint.build(folder / "base")
    shared = {
        **{"model.source": folder / "base", "data.train": write_clips(folder), "train.steps": STEPS, "train.lr": "2e-3"},
        **{"train.precision": "fp32", "train.global_batch_tokens": 4, "options.time_masks": 2, "options.mel_masks": 2},
        **{"log.trackers": "[]"},
    }

    def overrides(world: int) -> list[dict[str, str]]:
        return [
            {key: str(value) for key, value in {**shared, "run.dir": folder / f"{world}" / str(number), **case}.items()}
            for number, case in enumerate(EVERY)
        ]

    run_ranks(train_whisper_cases, [(world, (overrides(world),)) for world in WORLDS], ["whisper"], folder / "witness")
    return folder


def steps_of(runs: Path, world: int, case: dict[str, str]) -> list[dict[str, Any]]:
    return series(runs / f"{world}" / str(EVERY.index(case)))


def compare(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) == STEPS
    for one, other in zip(found, expected, strict=True):
        assert one["tokens"] == other["tokens"] == 4 and one["accuracy"] == other["accuracy"]
        assert one["loss"] == pytest.approx(other["loss"], abs=2e-5, rel=0)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


@pytest.mark.parametrize(("world", "case"), itertools.product(WORLDS, SAME))
def test_every_world_and_cut_gives_the_same_steps(runs: Path, world: int, case: dict[str, str]) -> None:
    """The masks are the same on any number of ranks and in any micro-batch."""
    compare(steps_of(runs, world, case), steps_of(runs, 1, PLAIN))


@pytest.mark.parametrize("case", OTHERS)
def test_adapters_a_frozen_encoder_and_the_base_distance_match_one_rank(runs: Path, case: dict[str, str]) -> None:
    compare(steps_of(runs, 2, case), steps_of(runs, 1, case))
    assert steps_of(runs, 1, case)[-1]["loss"] != steps_of(runs, 1, PLAIN)[-1]["loss"]
