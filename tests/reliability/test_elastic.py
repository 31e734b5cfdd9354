"""Saved on 1, 2 or 4 processes, resumed on 1, 2 or 4: the same bits after the load, the same rows, the same losses within rounding."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.modeling.lora_adapters import is_adapter
from tests.ledger import record
from tests.reliability import holdings, victims

SAVED, STEPS = 6, 26
"""Where the resumed runs start, and twenty steps more."""
WORLDS = (1, 2, 4)
PAIRS = [*itertools.product(WORLDS, WORLDS)]
TRAINED = {"full": (), "lora": ("--model.lora", "{rank: 3, alpha: 6}")}
LARGEST = 1e-6
"""Relative difference of a loss on another number of processes."""


class Runs:
    """Uninterrupted and resumed runs, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def whole(self, trained: str, world: int, strategy: str = "fsdp") -> Path:
        folder = self.folder / f"{trained}-{world}-{strategy}"
        if not folder.exists():
            self.train(folder, trained, world, strategy)
            assert len(victims.losses(folder / "run")) == STEPS
        return folder

    def resumed(self, trained: str, saved: int, resumed: int, strategies: tuple[str, str] = ("fsdp", "fsdp")) -> tuple[Path, Path]:
        """(the run that was saved and went on, the one that was resumed from there on other processes)"""
        whole = self.whole(trained, saved, strategies[0])
        folder = self.folder / "-".join([trained, str(saved), str(resumed), *strategies])
        if not folder.exists():
            only = f"step-{SAVED:08d}"
            shutil.copytree(whole / "run" / "checkpoints" / only, folder / "run" / "checkpoints" / only)
            self.train(folder, trained, resumed, strategies[1])
        return whole, folder

    def train(self, folder: Path, trained: str, world: int, strategy: str) -> None:
        argv = victims.arguments(
            self.folder, "--run.dir", folder / "run", "--train.steps", STEPS, "--checkpoint.every", SAVED, "--checkpoint.keep", STEPS,
            "--options.dropout", 0.2, "--parallel.strategy", strategy, *TRAINED[trained],
        )  # fmt: skip
        codes = victims.wait(holdings.begin(folder / "witness", world, argv))
        assert codes == [0] * world, victims.said(folder / "witness")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("elastic"))


def check_same(whole: Path, resumed: Path) -> float:
    """What was loaded, the order, the losses; returns the largest relative difference of a loss."""
    saved, loaded = holdings.read(whole / "witness", "saved", SAVED), holdings.read(resumed / "witness", "loaded", SAVED)
    assert loaded == saved and saved["updates"] == str(SAVED)
    assert not [name for name, digest in saved.items() if digest.startswith("zeros")], "a slice that is lost would look like these"
    assert rows(resumed) == {step: ids for step, ids in rows(whole).items() if step >= SAVED} and len(rows(resumed)) == STEPS - SAVED
    pairs = [*zip(victims.losses(resumed / "run"), victims.losses(whole / "run")[SAVED:], strict=True)]
    assert len(pairs) == STEPS - SAVED == 20 and all(one[0] == other[0] for one, other in pairs)
    return max(abs(one[1] - other[1]) / other[1] for one, other in pairs)


def rows(folder: Path) -> dict[int, list[list[str]]]:
    """Micro-batches by step, whichever rank took them."""
    return {step: sorted(map(json.dumps, itertools.chain(*of_ranks))) for step, of_ranks in victims.rows(folder / "witness").items()}


@pytest.mark.parametrize(("trained", "saved", "resumed"), [("full", 2, 1), pytest.param("lora", 1, 2, marks=pytest.mark.slow)])
def test_resuming_on_another_number_of_ranks_gives_the_same_losses(runs: Runs, trained: str, saved: int, resumed: int) -> None:
    assert check_same(*runs.resumed(trained, saved, resumed)) <= LARGEST


def test_every_rank_saves_its_slices_of_the_adapters(runs: Runs) -> None:
    """A state dict that is taken from rank 0 alone would lose all other ranks' slices."""
    _, resumed = runs.resumed("lora", 1, 2)
    shards = sorted((checkpoint.find(resumed / "run")).glob("*.safetensors"))
    names = [{name for name in safe_open(path, framework="pt").keys() if is_adapter(name)} for path in shards]  # noqa: SIM118
    assert len(names) == 2 and names[0] == names[1] and len(names[0]) == 3 * 2 * 6, "A and B of six layers, and their moments"


@pytest.mark.slow
def test_any_of_1_2_and_4_ranks_resumes_from_any(runs: Runs) -> None:
    assert len(PAIRS) == 9
    for trained in TRAINED:
        worst = 0.0
        for saved, resumed in PAIRS:
            spread = check_same(*runs.resumed(trained, saved, resumed))
            assert spread <= (0 if saved == resumed else LARGEST), (saved, resumed, spread)
            worst = max(worst, spread)
        record(
            f"saved on 1, 2 or 4 processes, resumed on 1, 2 or 4 ({trained}): the same bits, rows, and losses of 20 steps within 1e-6",
            len(PAIRS), 0, f"{worst:.1e}",
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("trained", TRAINED)
def test_a_run_resumes_with_another_strategy(runs: Runs, trained: str) -> None:
    changes = [("ddp", "fsdp"), ("fsdp", "zero1"), ("zero2", "ddp")]
    assert all(check_same(*runs.resumed(trained, 2, 4, change)) <= LARGEST for change in changes)
