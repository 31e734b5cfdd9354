"""Runs of two ranks with NaN, infinity or a spike at a chosen rank and step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from overtone.finetune.data.batching import RankBatch
from overtone.finetune.distributed import process_group
from overtone.finetune.monitoring.loss_spikes import NotFiniteError
from overtone.finetune.recipe import Batch, Recipe, Term
from overtone.finetune.training import loop
from overtone.finetune.training import run as training_run
from overtone.finetune.training.step import Training
from tests.finetune import tiny
from tests.reliability import victims

SPIKE = (("train.steps", "14"), ("train.spike", "5"))
KINDS = {"full": tiny.FULL, "lora": tiny.LORA, "spike": SPIKE}
EVERY = (("train.steps", "6"), ("checkpoint.every", "1"), ("checkpoint.keep", "20"), ("parallel.strategy", "fsdp"))


@dataclass(frozen=True)
class Poison:
    what: str
    """`loss` and `gradient` are multiplied by the value; `weights` become it after the update."""
    rank: int
    steps: tuple[int, ...]
    """From 0."""
    value: float


def poisoned(poison: Poison, rank: int, step: list[int]) -> Recipe:
    def loss(model: nn.Module, batch: Batch) -> dict[str, Term]:
        terms = tiny.RECIPE.loss(model, batch)
        if rank != poison.rank or step[0] not in poison.steps or not model.training:
            return terms
        if poison.what == "loss":
            return {name: Term(term.sum * poison.value, term.weight) for name, term in terms.items()}
        if poison.what == "gradient":
            for term in terms.values():
                term.sum.register_hook(lambda gradient: gradient * poison.value)
        return terms

    return replace(tiny.RECIPE, loss=loss)


def parameters(training: Training) -> list[torch.Tensor]:
    return [parameter.to_local().clone() for parameter in training.model.parameters()]  # type: ignore[attr-defined]  # all are DTensors


def run(
    joined: process_group.World, folder: Path, name: str, kind: str, poison: Poison, budget: int = 0, stop_at: int | None = None
) -> Any:
    """How one run ended here; whether a refused update left all weights as they were."""
    own = (("run.dir", str(folder / name)), ("train.skip_nonfinite", str(budget)), ("options.dropout", "0.2"))
    config = tiny.config_in(folder, *EVERY, *KINDS[kind], *own)
    step, original, untouched = [0], TRAIN_STEP, []

    def watched(training: Training, turns: list[RankBatch], number: int, *rest: Any) -> dict[str, float]:
        step[0] = number
        if number == stop_at and joined.rank == 1:
            victims.send_signal("SIGTERM")
        before = parameters(training)
        try:
            numbers = original(training, turns, number, *rest)
        except NotFiniteError:
            untouched.append(all(map(torch.equal, before, parameters(training))))
            raise
        if poison.what == "weights" and number in poison.steps and joined.rank == poison.rank:
            with torch.no_grad():
                next(p for p in training.model.parameters() if p.requires_grad).to_local()[0] = poison.value  # type: ignore[attr-defined]
        return numbers

    loop.train_step = watched
    tiny.let_go(config.run.dir)
    try:
        return [training_run.train(joined, config, poisoned(poison, joined.rank, step)), untouched]
    except NotFiniteError as error:
        return [str(error), untouched]


TRAIN_STEP: Callable[..., dict[str, float]] = loop.train_step


def train_all(rank: int, size: int, port: int, folder: Path) -> None:
    """All runs, one after the other; leaves what this rank saw of each in `found-RANK.json`."""
    victims.become(rank, size, port, folder)
    victims.draw_no_curve()
    joined = process_group.join((), folder)
    found: dict[str, Any] = {}
    for number, kind in enumerate(("full", "lora")):
        for turn, (what, value) in enumerate((("loss", float("nan")), ("gradient", float("inf")), ("weights", float("nan")))):
            name = f"{kind}-{what}"
            found[name] = run(joined, folder, name, kind, Poison(what, (number + turn) % 2, (3,), value))
        twice = Poison("gradient", 1, (0, 3), float("nan"))
        found[f"{kind}-whole"] = run(joined, folder, f"{kind}-whole", kind, twice, budget=2)
        first = run(joined, folder, f"{kind}-resumed", kind, twice, 2, stop_at=3)
        found[f"{kind}-resumed"] = [first[0], *run(joined, folder, f"{kind}-resumed", kind, twice, 2)]
        found[f"{kind}-exhausted"] = run(joined, folder, f"{kind}-exhausted", kind, twice, budget=1)
    for turn, what in enumerate(("loss", "gradient")):
        found[f"spike-{what}"] = run(joined, folder, f"spike-{what}", "spike", Poison(what, turn, (11,), 1e3))
    twice = Poison("gradient", 0, (11, 13), 1e3)
    found["spike-whole"] = run(joined, folder, "spike-whole", "spike", twice, budget=2)
    first = run(joined, folder, "spike-resumed", "spike", twice, 2, stop_at=12)
    found["spike-resumed"] = [first[0], *run(joined, folder, "spike-resumed", "spike", twice, 2)]
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    process_group.leave()
    os._exit(0)
