"""The loss on held-out rows, with the exact counts of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import torch

from finetune import packing, parallel
from finetune.batches import MicroBatch
from finetune.guards import StopRequests
from finetune.rows import Rows
from finetune.step import Training, loader_of, means, on_device
from finetune.world import data_sums, sums


@torch.no_grad()
def evaluate(training: Training, rows: Rows, requests: StopRequests) -> dict[str, float] | None:
    """Means over all of `rows`, with the exact counts of training; None if a stop was asked for before the end.

    Collective: call on every rank.
    """
    world = training.world
    training.model.eval()
    totals: dict[str, float] = {}
    counts: dict[str, float] = {}
    weights: dict[str, float] = {}
    try:
        with closing(loader_of(training, rows)) as loader:
            for group in _by(world.data_size, _in_order(rows, training.config.train.micro_tokens)):
                if sums(world, [float(requests.asked() is not None)])[0]:
                    return None
                for turn in loader.turns(group):
                    terms = training.recipe.loss(training.model, on_device(turn.batch, world.device))
                    for name, term in terms.items():
                        weights[name] = term.weight
                        totals[name] = totals.get(name, 0.0) + (float(term.sum) if turn.counts else 0.0)
                        counts[name] = counts.get(name, 0.0) + (turn.batch.targets[name] if turn.counts else 0)
    finally:
        parallel.reshard(training.model)
        training.model.train()
    names = sorted(totals)
    summed = data_sums(world, [totals[name] for name in names] + [counts[name] for name in names])
    measured = means(dict(zip(names, summed, strict=False)), dict(zip(names, summed[len(names) :], strict=True)), weights)
    return training.recipe.report(measured)


def _in_order(rows: Rows, micro_tokens: int) -> list[MicroBatch]:
    by_length = np.argsort(rows.lengths, kind="stable")
    groups = packing.fill(by_length, rows.lengths[by_length], micro_tokens)
    return [MicroBatch(tuple(int(row) for row in group), int(rows.lengths[group].sum()), 0) for group in groups]


def _by(size: int, micros: list[MicroBatch]) -> Iterator[tuple[MicroBatch, ...]]:
    for start in range(0, len(micros), size):
        yield tuple(micros[start : start + size])
