"""The loss on held-out rows, with the exact counts of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from finetune.data import packing
from finetune.data.batching import MicroBatch, Place, Step
from finetune.data.jsonl_dataset import Rows
from finetune.distributed import sharding
from finetune.distributed.process_group import sum_over_data_ranks, sum_over_ranks
from finetune.monitoring.stop_requests import StopRequests
from finetune.training.step import Training, compute_means, copy_to_device, make_loader, report_means


@torch.no_grad()
def evaluate(training: Training, rows: Rows, requests: StopRequests) -> dict[str, float] | None:
    """Means over all of `rows`, with the exact counts of training; None if a stop was requested before the end.

    The next batches are loaded while one is computed. The fp64 sums stay on the device until the end, so the host waits for the device
    once. Collective: call on every rank.
    """
    world = training.world
    training.model.eval()
    zero = torch.zeros((), dtype=torch.float64, device=world.device)
    totals: dict[str, Tensor] = {}
    counts: dict[str, float] = {}
    weights: dict[str, float] = {}
    try:
        with closing(make_loader(training, rows)) as loader:
            for _, turns in loader.iterate(
                _group_into_rounds(world.data_size, _make_micro_batches(rows, training.config.train.micro_tokens))
            ):
                if sum_over_ranks(world, [float(requests.poll() is not None)])[0]:
                    return None
                for turn in turns:
                    terms = training.recipe.loss(training.model, copy_to_device(turn.batch, world.device))
                    for name, term in terms.items():
                        weights[name] = term.weight
                        totals[name] = totals.get(name, zero) + (term.sum.double() if turn.counts else zero)
                        counts[name] = counts.get(name, 0.0) + (turn.batch.targets[name] if turn.counts else 0)
    finally:
        sharding.reshard(training.model)
        training.model.train()
    names = sorted(totals)
    fetched: list[float] = torch.stack([totals[name] for name in names]).tolist() if names else []
    summed = sum_over_data_ranks(world, fetched + [counts[name] for name in names])
    measured = compute_means(dict(zip(names, summed, strict=False)), dict(zip(names, summed[len(names) :], strict=True)), weights)
    return report_means(training, measured, weights)


def _make_micro_batches(rows: Rows, micro_tokens: int) -> list[MicroBatch]:
    by_length = np.argsort(rows.lengths, kind="stable")
    groups = packing.fill(by_length, rows.lengths[by_length], micro_tokens)
    return [MicroBatch(tuple(int(row) for row in group), int(rows.lengths[group].sum()), 0) for group in groups]


def _group_into_rounds(size: int, micros: list[MicroBatch]) -> Iterator[Step]:
    """One micro-batch for each of `size` shares of the data, as the loader takes them; an evaluation has no place to resume from."""
    for start in range(0, len(micros), size):
        yield Step(tuple(micros[start : start + size]), Place())
