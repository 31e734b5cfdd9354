"""The loss on held-out rows, with the exact counts of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from overtone.finetune.data import packing
from overtone.finetune.data.batching import Loader, MicroBatch, Place, RankBatch, Step
from overtone.finetune.data.cached_samples import Ids, Rows
from overtone.finetune.data.mixture import MixedRows
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.process_group import sum_over_data_ranks, sum_over_ranks
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.training.step import (
    Training,
    add_divergence,
    check_terms,
    compute_means,
    copy_to_device,
    estimate_divergence,
    make_loader,
    report_means,
)


class EvaluationStoppedError(Exception):
    """A stop was requested before all rows were evaluated."""


@torch.no_grad()
def evaluate(training: Training, rows: Rows | MixedRows, requests: StopRequests) -> dict[str, float] | None:
    """Return means over all of `rows`, with the exact counts of training; None if a stop was requested before the end. For several files,
    also return the means of each file, as `FILE/METRIC`. The means over all rows are sums over all files divided by counts over all files,
    as if the rows were in one file.

    The next batches are loaded while one is computed. The fp64 sums stay on the device until the end, so the host waits for the device
    once. Collective: call on every rank.
    """
    world = training.world
    training.model.eval()
    zero = torch.zeros((), dtype=torch.float64, device=world.device)
    sources = rows.names if isinstance(rows, MixedRows) else ()
    totals: dict[str, Tensor] = {}
    counts: dict[str, float] = {}
    weights: dict[str, float] = {}
    try:
        if training.rollouts is not None:
            training.rollouts.take_over_weights(training.model)
        with closing(make_loader(training, rows)) as loader:
            divergence = estimate_divergence(training, _load_rounds(training, rows, loader, requests))
            for turns in _load_rounds(training, rows, loader, requests):
                answered = turns if training.rollouts is None else training.rollouts.answer(rows, turns, None)
                for turn in add_divergence(training, answered, divergence):
                    terms = training.recipe.loss(training.model, copy_to_device(turn.batch, world.device))
                    check_terms(terms, turn.batch.targets)
                    for name, term in terms.items():
                        weights[name] = term.weight
                        for key in (name, *(f"{source}/{name}" for source in sources)):  # the same keys on every rank
                            totals.setdefault(key, zero)
                            counts.setdefault(key, 0.0)
                        of_file = [] if turn.micro.source is None else [f"{sources[turn.micro.source]}/{name}"]
                        for key in (name, *of_file) if turn.counts else ():
                            totals[key] = totals[key] + term.sum.double()
                            counts[key] += turn.batch.targets[name]
    except EvaluationStoppedError:
        return None
    finally:
        sharding.reshard(training.model)
        training.model.train()
    names = sorted(totals)
    fetched: list[float] = torch.stack([totals[name] for name in names]).tolist() if names else []
    summed = sum_over_data_ranks(world, fetched + [counts[name] for name in names])
    sums, all_counts = dict(zip(names, summed, strict=False)), dict(zip(names, summed[len(names) :], strict=True))
    measured = compute_means({name: sums[name] for name in weights}, all_counts, weights)
    return {**report_means(training, measured, weights), **_report_files(training, sources, sums, all_counts, weights)}


def _load_rounds(training: Training, rows: Rows | MixedRows, loader: Loader, requests: StopRequests) -> Iterator[list[RankBatch]]:
    """Yield this rank's batches of all `rows`. Raises `EvaluationStoppedError` if a stop is requested. Collective: call on every rank."""
    micros = make_micro_batches(rows, training.config.train.micro_tokens)
    size = training.world.data_size
    if training.rollouts is not None:  # a row counts as a whole group of answers, but here it gets one: fill the running batch
        size *= max(1, training.rollouts.worker.slots * len(micros) // len(rows))
    # One micro-batch for each share of the data, as the loader takes them; an evaluation has no place to resume from.
    rounds = (Step(tuple(micros[start : start + size]), Place()) for start in range(0, len(micros), size))
    for _, turns in loader.iterate(rounds):
        if sum_over_ranks(training.world, [float(requests.poll() is not None)])[0]:
            raise EvaluationStoppedError
        yield turns


def _report_files(
    training: Training, sources: Sequence[str], sums: Mapping[str, float], counts: Mapping[str, float], weights: dict[str, float]
) -> dict[str, float]:
    """The metrics of each file, as `FILE/METRIC`, without those of which it has no target."""
    found: dict[str, float] = {}
    for source in sources:
        own = {name: counts[f"{source}/{name}"] for name in weights}
        means = compute_means({name: sums[f"{source}/{name}"] for name in weights}, own, weights)
        reported = training.recipe.report(means | {name: math.nan for name, count in own.items() if not count})
        found |= {f"{source}/{name}": value for name, value in reported.items() if any(own.values()) and not math.isnan(value)}
    return found


def make_micro_batches(rows: Rows | MixedRows, micro_tokens: int) -> list[MicroBatch]:
    """Return micro-batches of rows of similar length; of several files, each has rows of one file."""
    if isinstance(rows, MixedRows):
        parts = zip(rows.lengths.parts, rows.lengths.starts, strict=True)
        return [one for source, (lengths, first) in enumerate(parts) for one in _fill_batches(lengths, micro_tokens, first, source)]
    return _fill_batches(rows.lengths, micro_tokens)


def _fill_batches(lengths: Ids, micro_tokens: int, first: int = 0, source: int | None = None) -> list[MicroBatch]:
    """`lengths` [rows] of one file, whose rows are numbered from `first` on."""
    by_length = np.argsort(lengths, kind="stable")
    groups = packing.fill(by_length, lengths[by_length], micro_tokens)
    return [MicroBatch(tuple(first + int(row) for row in group), int(lengths[group].sum()), 0, source=source) for group in groups]
