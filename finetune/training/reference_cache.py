"""Computes the predictions of the base that a recipe's loss compares with once, before the first step, for a recipe with a
`PredictionCache`.

The model has the weights of its base then, so it needs no copy of the base. The rows of each file are divided into the micro-batches of its
first epoch of training, or of an evaluation; ranks take these in turn, and each writes parts of its own. So the predictions do not depend
on the number of ranks, and a killed run resumes after its last parts, also on another number of ranks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from overtone.finetune.data import batching, cached_predictions, sample_cache_key
from overtone.finetune.data.batching import MicroBatch, Place, RankBatch, Step
from overtone.finetune.data.cached_predictions import CachedPredictions, CacheKey, StalePredictionsError
from overtone.finetune.data.cached_samples import REFERENCE, REFERENCE_PARTS, RowPredictions, Rows
from overtone.finetune.data.mixture import MixedRows
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.process_group import run_on_all, run_on_main
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.modeling import base_kl_loss, quantization
from overtone.finetune.recipe import Batch, find_recipe
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from overtone.finetune.training.evaluation import make_micro_batches
from overtone.finetune.training.step import Training, copy_to_device, list_mismatched, make_loader

PART = 32
"""Least micro-batches of a part, which are lost at most if a rank is killed: seconds on a GPU."""
MOST_PARTS = 500
"""Parts of a data file: each is an open file while they are merged."""


def cache_reference(training: Training) -> Training:
    """Return the run with cached predictions of its training and validation rows. The model must have the weights of its base. Collective:
    call on every rank."""
    if training.recipe.augment is not None:
        raise UserError("the recipe augments its samples, so predictions of the base cannot be computed before; compute them in each step")
    places: dict[Path, CachedPredictions] = {}

    def add(rows: Rows, trained: bool) -> Rows:
        if rows.path not in places:  # a file that is trained and evaluated has one cache
            micros, batches = _divide(training, rows, trained)
            places[rows.path] = _open(training, rows, micros, _make_key(training, rows, batches))
        return replace(rows, predictions=places[rows.path].read)

    def add_all(rows: Rows | MixedRows, trained: bool) -> Rows | MixedRows:
        if isinstance(rows, MixedRows):
            return replace(rows, sources=tuple(add(each, trained) for each in rows.sources))
        return add(rows, trained)

    rows, val = add_all(training.rows, True), None if training.val is None else add_all(training.val, False)
    size, where = sum(each.bytes for each in places.values()), ", ".join(str(each.path) for each in places.values())
    remark = f"reference: cached, {size / 2**20:.1f} MiB, no memory and no forward pass in a step: {where}"
    return replace(training, rows=rows, val=val, loaded=replace(training.loaded, remarks=(*training.loaded.remarks, remark)))


def _divide(training: Training, rows: Rows, trained: bool) -> tuple[list[MicroBatch], str]:
    """The micro-batches of all rows of a file, and the settings that they depend on. Those of a single training file are the ones of its
    first epoch, so that predictions computed in a step would have the same rounding."""
    if not trained:
        return make_micro_batches(rows, training.config.train.micro_tokens), f"evaluation, {training.config.train.micro_tokens}"
    order = training.order
    windows = range(-(-len(rows) // order.window))
    micros = [micro for window in windows for micro in batching.micro_batches(order, rows.lengths, 0, window)]
    return micros, json.dumps(order.as_json())


def _make_key(training: Training, rows: Rows, batches: str) -> CacheKey:
    reference = training.recipe.reference
    assert reference is not None  # `base_kl_loss.has_cached_reference`
    packed = [sharding.plain_name(name) for name, _ in training.model.named_parameters() if quantization.weight_of(name)]
    return CacheKey(
        base=training.identity["base"]["digest"],
        quantization=training.config.model.quantization or "null",
        packed=hashlib.sha256("\n".join(sorted(packed)).encode()).hexdigest(),
        data=rows.digest,
        samples=hashlib.sha256(np.ascontiguousarray(rows.index[:, [2, 7]]).tobytes()).hexdigest(),
        precision=training.config.train.precision,
        device=training.world.device.type,
        batches=batches,
        answers="the answers of each row alone" if reference.divergence is None else "the answers of each row and of another one",
        code=sample_cache_key.code_version(find_recipe(training.config.recipe)),
    )


def _open(training: Training, rows: Rows, micros: list[MicroBatch], key: CacheKey) -> CachedPredictions:
    """The predictions of a file, computed if there are none that can be used. Collective: call on every rank."""
    world = training.world
    path, folder = (rows.samples.path.with_suffix(ending) for ending in (REFERENCE, REFERENCE_PARTS))

    def find_problem() -> str | None:
        if not path.exists():
            return ""
        try:
            CachedPredictions(path, key).verify()
        except StalePredictionsError as problem:
            return f"the cached reference {path} is not used: {problem}"
        files.discard(folder)  # of a launch that was killed before it had removed the parts
        return None

    problem = run_on_main(world, find_problem)
    if problem is not None:
        if world.is_main:
            print_line(f"{problem}; computing it again …" if problem else f"computing the reference of {rows.path}, once …")
        _compute(training, rows, micros, key, folder)
        run_on_main(world, lambda: cached_predictions.merge_parts(path, folder, key))
    return run_on_all(world, lambda: CachedPredictions(path, key))


def _compute(training: Training, rows: Rows, micros: list[MicroBatch], key: CacheKey, folder: Path) -> None:
    """Write parts with the predictions of all rows to `folder`. Collective: call on every rank."""
    world = training.world

    done = {*run_on_main(world, lambda: [row for part in cached_predictions.open_parts(folder, key) for row in part.rows])}
    todo = [number for number, micro in enumerate(micros) if not done.issuperset(micro.ids)]
    if done and world.is_main:
        print_line(f"{len(done):,} of {format_count(len(rows), 'row')} were computed before")
    size = world.data_size * max(PART, -(-len(micros) // MOST_PARTS))
    with closing(make_loader(training, rows)) as loader:
        for start in range(0, len(todo), size):
            numbers = todo[start : start + size]
            chosen = [replace(micros[number], window=None) for number in numbers]
            rounds = (Step(tuple(chosen[at : at + world.data_size]), Place()) for at in range(0, len(chosen), world.data_size))
            found = [each for _, turns in loader.iterate(rounds) for turn in turns for each in _predict(training, turn)]
            first = numbers[min(world.data_rank, len(numbers) - 1)]
            run_on_all(world, lambda first=first, found=found: _write(training, folder, first, key, found))  # type: ignore[misc]
            if world.is_main:
                print_line(f"{len(micros) - max(len(todo) - start - size, 0):,} of {len(micros):,} micro-batches of the reference")
    sharding.reshard(training.model)


def _write(training: Training, folder: Path, number: int, key: CacheKey, found: list[RowPredictions]) -> None:
    """Ranks that share matrices have the same rows, and one of them writes."""
    if found and training.world.rank % training.world.tensor == 0:
        cached_predictions.write_part(folder, number, key, found)


def _predict(training: Training, turn: RankBatch) -> Iterator[RowPredictions]:
    """The base's predictions of a micro-batch; none for a filler. Collective: call on every rank."""
    reference, world = training.recipe.reference, training.world
    assert reference is not None and reference.cache is not None  # `base_kl_loss.has_cached_reference`
    count = reference.cache.count

    def predict(batch: Batch) -> list[Tensor]:
        moved = copy_to_device(batch, world.device)
        found = base_kl_loss.predict_with_base(reference.predict, training.model, None, moved)
        found = found if found.dtype == torch.float64 else found.float()
        return [*found.cpu().split(count(batch))]

    own = predict(turn.batch)
    others = [] if reference.divergence is None else [*list_mismatched(world, [turn])]
    mismatched = [each for batch, counts in others for each in predict(batch) if counts]
    if turn.counts:
        yield from map(RowPredictions, turn.micro.ids, own, mismatched or [own[0].new_zeros(0)] * len(own))
