"""Runs that stop anywhere and go on with another number of ranks: no row is missed or repeated, and every step is the one it would be."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from overtone.finetune.data import batching
from overtone.finetune.data.batching import Loader, MicroBatch, Order, Place, Step
from tests.finetune import tiny
from tests.finetune.data.test_batching import rows_in_memory
from tests.ledger import record

WORLDS = (1, 2, 4)
RECIPE = replace(tiny.RECIPE, pack=tiny.RECIPE.collate)  # how samples lie in a batch is not looked at here


def drawn(chance: random.Random) -> tuple[Order, list[str], int]:
    """(order, texts, epochs)"""
    micro = chance.randint(20, 200)
    order = Order(chance.randrange(2**31), chance.randint(1, 60), micro, chance.randint(1, 5 * micro), chance.random() < 0.5)
    return order, ["x" * chance.randint(3, 40) for _ in range(chance.randint(1, 120))], chance.randint(1, 3)


def one_history(chance: random.Random) -> int:
    """Returns how often it went on."""
    order, texts, epochs = drawn(chance)
    rows = rows_in_memory(texts)
    whole = [step.micros for step in batching.steps(order, rows.lengths, Place(), epochs)]
    trained: list[tuple[MicroBatch, ...]] = []
    place, launches = Place(), 0
    while len(trained) < len(whole):
        world, launches = chance.choice(WORLDS), launches + 1
        loaders = [Loader(rows, RECIPE, rank, world) for rank in range(world)]
        for step in islice(batching.steps(order, rows.lengths, place, epochs), chance.randint(1, len(whole))):
            trained.append(taken(step, loaders))
            place = step.after
        for loader in loaders:
            loader.close()
    assert trained == whole, "the same rows, cut alike, with the same keys of their dropout"
    assert Counter(row for micros in trained for micro in micros for row in micro.ids) == dict.fromkeys(range(len(texts)), epochs)
    return launches - 1


def taken(step: Step, loaders: list[Loader]) -> tuple[MicroBatch, ...]:
    """What counts of what the ranks do, in the order of the step."""
    rounds = zip(*(loader.turns(step.micros) for loader in loaders), strict=True)
    return tuple(turn.micro for of_ranks in rounds for turn in of_ranks if turn.counts)


def histories(count: int) -> int:
    seed = time.time_ns()
    print(f"seed {seed}")
    chance = random.Random(seed)
    return sum(one_history(chance) for _ in range(count))


def test_runs_stopped_anywhere_train_on_every_row_in_order() -> None:
    assert histories(60) > 20


@pytest.mark.slow
def test_many_runs_stopped_anywhere_train_on_every_row_in_order() -> None:
    again = histories(2000)
    assert again > 1000
    record(
        "stopped at any step and gone on at 1, 2 or 4 processes: every row once an epoch, the same micro-batches and keys of dropout",
        2000, 0, f"went on {again:,} times",
    )  # fmt: skip
