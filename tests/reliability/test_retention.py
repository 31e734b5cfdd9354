"""Random histories of saving, pruning, dying, damage and strangers: what is needed is never removed, and nothing before a commit."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.storage import files
from tests.finetune.checkpointing.test_checkpoint import fake
from tests.ledger import record

LOSSES = st.none() | st.integers(1, 5).map(float)


class Died(BaseException):
    """Stands for the end of the process: no handler of the code under test may act on it."""


class History(RuleBasedStateMachine):
    """One run's folder, and what a person would want of it."""

    histories = 0
    saves = 0
    deaths = 0

    @initialize(keep=st.integers(2, 4))
    def begin(self, keep: int) -> None:
        History.histories += 1
        self.keep, self.step = keep, 0
        self.folder = Path(tempfile.mkdtemp())
        self.strangers: set[Path] = set()
        self.losses: dict[int, float | None] = {}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def mine(self) -> dict[int, Path]:
        return {int(path.name[5:]): path for path in checkpoint.list_checkpoints(self.folder) if path not in self.strangers}

    def save(self, loss: float | None, strike: Callable[[str, Path], None]) -> None:
        """A save with its pruning; what must be there afterwards follows from what was there before."""
        before, step = set(self.mine()), self.step + 1
        with contextlib.suppress(Died), files.watch(strike):
            checkpoint.prune(self.folder, self.keep, fake(self.folder, step, loss))
        History.saves += 1
        here = self.mine()
        if step not in here:
            assert set(here) == before, "nothing goes before a commit"
            return
        self.step, self.losses[step] = step, loss
        measured = [(value, each) for each in before | {step} if (value := self.losses[each]) is not None]
        needed = {step, *sorted(before)[-1:], *(each for _, each in sorted(measured)[:1])}
        assert needed <= set(here) <= before | {step}, "the newest two and the best"

    @rule(loss=LOSSES)
    def save_and_prune(self, loss: float | None) -> None:
        self.save(loss, lambda operation, path: None)
        assert len(self.mine()) <= self.keep + 1

    @rule(loss=LOSSES, number=st.integers(0, 9))
    def die_while_saving(self, loss: float | None, number: int) -> None:
        left = [number]

        def strike(operation: str, path: Path) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Died

        self.save(loss, strike)
        History.deaths += left[0] < 0

    @rule()
    def start_again(self) -> None:
        files.remove_unfinished(self.folder)
        assert files.list_unfinished(self.folder) == []

    @rule(loss=LOSSES, later=st.integers(-3, 3), kind=st.sampled_from(["other run", "half a name", "notes"]))
    def a_stranger_comes(self, loss: float | None, later: int, kind: str) -> None:
        step = self.step + later
        path = self.folder / {"other run": f"step-{step:08d}", "half a name": f"step-{abs(step)}", "notes": "notes"}[kind]
        if step <= 0 or path.exists() or (kind == "other run" and step > self.step):
            return
        fake(self.folder, step, loss, data="another") if kind == "other run" else path.mkdir()
        self.strangers.add(path)

    @rule()
    def the_newest_is_damaged(self) -> None:
        mine = self.mine()
        if len(mine) > 1:
            path = mine[max(mine)]
            (path / "state.json").write_text("damaged")
            self.strangers.add(path)

    @invariant()
    def what_is_here_is_whole(self) -> None:
        if hasattr(self, "folder"):
            assert all(path.exists() for path in self.strangers)
            assert all(checkpoint.find_problem(path) is None for path in self.mine().values())


def search(histories: int) -> None:
    History.histories = History.saves = History.deaths = 0
    run_state_machine_as_test(History, settings=settings(max_examples=histories, stateful_step_count=20, deadline=None))
    assert History.histories >= histories // 2, "hypothesis may repeat some"
    assert History.saves > histories and History.deaths > histories / 4


@pytest.mark.ci
@pytest.mark.slow
def test_pruning_never_removes_a_needed_checkpoint() -> None:
    search(150)


@pytest.mark.slow
def test_pruning_never_removes_a_needed_checkpoint_in_many_histories() -> None:
    search(1500)
    record(
        "retention in random histories: never before a commit, never the newest two, the best, or a stranger",
        History.histories, 0, f"{History.saves} saves, {History.deaths} deaths",
    )  # fmt: skip
