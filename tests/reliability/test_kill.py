"""kill -9 at any moment, a quarter of the time inside a save: the run goes on as if nothing had happened, bit by bit."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.storage import files
from tests.ledger import record
from tests.reliability import victims
from tests.reliability.victims import Fault

STEPS, EVERY, RANKS = 16, 3, 2


def arguments(folder: Path, run: Path) -> list[str]:
    return victims.arguments(
        folder, "--train.steps", STEPS, "--checkpoint.every", EVERY, "--checkpoint.keep", 2, "--options.dropout", 0.2,
        "--parallel.strategy", "fsdp", "--run.dir", run,
    )  # fmt: skip


Arguments = Callable[[Path, Path], list[str]]
"""(folder of the data, folder of the run) → command line of the training."""


def inside_a_save(witness: Path, run: Path, chance: random.Random, arguments: Arguments) -> str:
    """A rank dies at one of its disk operations, sometimes in the middle of it; then all are killed."""
    rank = chance.randrange(RANKS)
    fault = Fault(rank, chance.randrange(40 if rank == 0 else 8), torn=chance.random() < 0.5)
    before = len(victims.struck(witness))
    ranks = victims.start(witness, RANKS, arguments(run.parent, run), fault)
    ranks[rank].join(60)
    victims.kill(ranks)
    return "save" if len(victims.struck(witness)) > before else "finished"


def anywhere(witness: Path, run: Path, chance: random.Random, arguments: Arguments) -> str:
    """All ranks are killed at a random moment after the first of their steps."""
    ranks = victims.start(witness, RANKS, arguments(run.parent, run))
    first, deadline = steps_told(run), time.monotonic() + 60
    while steps_told(run) == first and all(process.is_alive() for process in ranks) and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 1.0))
    alive = victims.kill(ranks)
    if alive < RANKS:
        return "finished"
    return "save" if files.list_unfinished(run / "checkpoints") else "anywhere"


def steps_told(run: Path) -> int:
    log = run / "log.jsonl"
    return log.read_text().count('"event": "step"') if log.is_file() else 0


def one_run_killed_on_and_on(folder: Path, chance: random.Random, kills: int, arguments: Arguments = arguments) -> list[str]:
    """A run that is killed after each start until it has ended (or suffered `kills`), and then equals the one that never was."""
    run, witness = folder / "run", folder / "witness"
    hits: list[str] = []
    while len(hits) < kills and "finished" not in hits:
        kind = inside_a_save if chance.random() < 0.5 else anywhere
        hits.append(kind(witness, run, chance, arguments))
        for path in checkpoint.list_checkpoints(run / "checkpoints"):
            assert checkpoint.find_problem(path) is None, (hits, path)
    victims.finish(witness, RANKS, arguments(folder, run))
    return [hit for hit in hits if hit != "finished"]


def check_equal(folder: Path, whole: Path, steps: int = STEPS) -> None:
    assert victims.losses(folder / "run") == victims.losses(whole / "run") and len(victims.losses(whole / "run")) == steps
    assert victims.rows(folder / "witness") == victims.rows(whole / "witness")
    assert victims.weights(folder / "run") == victims.weights(whole / "run") and len(victims.weights(whole / "run")) == 1 + RANKS
    assert files.list_unfinished(folder / "run" / "checkpoints") == []


def trials(folder: Path, kills: int) -> list[str]:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    whole = folder / "whole"
    victims.finish(whole / "witness", RANKS, arguments(whole, whole / "run"))
    hits: list[str] = []
    runs = (folder / f"killed-{number}" for number in itertools.count())  # one that ended unharmed must not be begun again: it never is hit
    while len(hits) < kills:
        killed = next(runs)
        hits += one_run_killed_on_and_on(killed, chance, min(12, kills - len(hits)))
        check_equal(killed, whole)
    return hits


def test_a_few_kills_change_nothing(tmp_path: Path) -> None:
    assert len(trials(tmp_path, 4)) == 4


@pytest.mark.slow
def test_many_kills_change_nothing(tmp_path: Path) -> None:
    hits = trials(tmp_path, 64)
    inside = hits.count("save")
    assert len(hits) >= 60 and inside >= len(hits) / 4, "the kills hit what they claim"
    record("kill -9 of 2 processes at any moment: same losses, rows and weights, bit by bit", len(hits), 0, f"{inside} inside a save")
