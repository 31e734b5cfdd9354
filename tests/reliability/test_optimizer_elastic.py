"""8-bit AdamW and Muon, saved on 1, 2 or 4 processes and resumed on 1, 2 or 4: the same bits after the load, the same rows and losses."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Literal

import pytest

from tests.causal_lm.recipe import write_base, write_texts
from tests.launch.launching import ROOT
from tests.reliability import holdings, victims

SAVED, STEPS = 3, 8
WORLDS = (1, 2, 4)
Optimizer = Literal["adamw_8bit", "muon"]
LARGEST: dict[Optimizer, float] = {"adamw_8bit": 1e-6, "muon": 1e-6}
"""Relative difference of a loss on another number of processes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with rows of whole blocks of 256, of broken ones and of less than one; and ragged text."""
    folder = tmp_path_factory.mktemp("optimizers")
    write_base(folder / "base", "broad")
    write_texts(folder / "train.jsonl")
    return folder


def train(folder: Path, name: str, optimizer: Optimizer, world: int) -> Path:
    argv = [
        "--recipe", ROOT / "tests" / "causal_lm", "--model.source", folder / "base", "--data.train", folder / "train.jsonl",
        "--run.dir", folder / name / "run", "--train.optimizer", optimizer, "--train.steps", STEPS, "--train.lr", 1e-3,
        "--train.global_batch_tokens", 150, "--train.micro_tokens", 70, "--train.precision", "fp32", "--checkpoint.every", SAVED,
        "--checkpoint.keep", STEPS, "--parallel.strategy", "fsdp", "--log.trackers", "[]",
    ]  # fmt: skip
    codes = victims.wait(holdings.begin(folder / name / "witness", world, [str(word) for word in argv]))
    assert codes == [0] * world, victims.said(folder / name / "witness")
    return folder / name


def whole(folder: Path, optimizer: Optimizer, world: int) -> Path:
    """An uninterrupted run, made once."""
    name = f"{optimizer}-{world}"
    return folder / name if (folder / name).is_dir() else train(folder, name, optimizer, world)


def check_pair(folder: Path, optimizer: Optimizer, saved: int, resumed: int) -> None:
    before = whole(folder, optimizer, saved)
    name, only = f"{optimizer}-{saved}-{resumed}", f"step-{SAVED:08d}"
    shutil.copytree(before / "run" / "checkpoints" / only, folder / name / "run" / "checkpoints" / only)
    after = train(folder, name, optimizer, resumed)
    held, loaded = holdings.read(before / "witness", "saved", SAVED), holdings.read(after / "witness", "loaded", SAVED)
    kind, count = {"adamw_8bit": ("uint8", 2 * 2 * 6), "muon": ("optimizer.momentum_buffer.", 2 * 7)}[optimizer]
    assert loaded == held and sum(kind in f"{name} {digest}" for name, digest in held.items()) == count
    assert not [name for name, digest in held.items() if digest.startswith("zeros")], "a slice that is lost would look like these"
    largest = spread_of(after, before, SAVED)
    assert largest <= (0 if saved == resumed else LARGEST[optimizer]), (saved, resumed, largest)


def spread_of(one: Path, other: Path, start: int) -> float:
    """The largest relative difference of a loss between two runs, of which `one` has the steps from `start` on."""
    pairs = [*zip(victims.losses(one / "run"), victims.losses(other / "run")[start:], strict=True)]
    assert len(pairs) == STEPS - start and all(left[0] == right[0] for left, right in pairs)
    return max(abs(left[1] - right[1]) / right[1] for left, right in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw_8bit", "muon"])
def test_any_number_of_processes_resumes_from_any(folder: Path, optimizer: Optimizer) -> None:
    for saved, resumed in product(WORLDS, WORLDS):
        check_pair(folder, optimizer, saved, resumed)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw_8bit", "muon"])
def test_losses_do_not_depend_on_the_number_of_processes(folder: Path, optimizer: Optimizer) -> None:
    one = whole(folder, optimizer, 1)
    for world in WORLDS[1:]:
        assert spread_of(whole(folder, optimizer, world), one, 0) <= LARGEST[optimizer], world
