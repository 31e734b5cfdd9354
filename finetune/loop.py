"""The only training loop: take a step's micro-batches, update, tell, evaluate, save, stop."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from finetune import batches, checkpoint, config, optim, packing, parallel
from finetune.batches import Loader, MicroBatch, Place, Turn
from finetune.config import Config
from finetune.errors import UserError
from finetune.events import Events
from finetune.guards import (
    NotFiniteError,
    Recent,
    Stop,
    StopRequests,
    agree_to_stop,
    check_measured,
    check_reached,
    is_finite,
    not_finite,
    remember,
    spiked,
    too_late,
    unusual,
)
from finetune.recipe import Batch, Loaded, Recipe, Term
from finetune.rows import Rows
from finetune.world import World, data_sums, gather, sums


@dataclass(frozen=True)
class Training:
    """All that stays the same while a run trains."""

    world: World
    config: Config
    recipe: Recipe
    loaded: Loaded
    model: nn.Module
    strategy: parallel.Strategy
    optimizer: torch.optim.AdamW
    rows: Rows
    val: Rows | None
    total: int
    """Optimizer steps of the whole run."""
    identity: dict[str, Any]
    """What a checkpoint of this run must agree with (data, base, order, recipe)."""


@dataclass(frozen=True)
class Progress:
    """All that changes, besides weights and moments."""

    step: int = 0
    place: Place = field(default_factory=Place)
    validation_loss: float | None = None
    """Of an evaluation at this very step: that of an older one would make other weights the best."""
    skipped: int = 0
    """Steps whose update was not applied, because it was not finite, or a spike."""
    recent: Recent = ()
    """Kept under `train.spike`."""


def fit(
    training: Training,
    progress: Progress,
    events: Events,
    saver: checkpoint.Saver,
    requests: StopRequests,
    after_step: Callable[[int], None] = lambda _: None,
) -> tuple[Progress, str]:
    """Train to the end or to a request to stop; returns where it stands and why. Collective: call on every rank.

    `after_step` is told each step that is done, once what was due then is saved or being saved.
    """
    todo = steps_left(training, progress)
    stop = None
    if evaluation_due(training, progress):  # a stop came before the last process had it
        progress, stop = look_up(training, progress, events, requests)
    if stop is not None:  # all of it is committed, and one step more would leave that evaluation behind
        requests.done(stop, training.world)
        return progress, stop.reason
    with closing(loader_of(training, training.rows)) as loader:
        for step, turns in loader.over(todo):
            progress = advance(training, progress, events, turns, step.after)
            progress, stop = look_up(training, progress, events, requests)
            unsaved = save_when_due(training, progress, events, saver, stop)
            after_step(progress.step)
            if stop is not None:
                requests.done(stop, training.world)
                return progress, "; ".join(filter(None, (stop.reason, unsaved)))
    return progress, "finished"


def steps_left(training: Training, progress: Progress) -> Iterator[batches.Step]:
    """The steps from where the run stands to its end."""
    train = training.config.train
    todo = batches.steps(batches.Order.of(training.config), training.rows.lengths, progress.place, None if train.steps else train.epochs)
    return islice(todo, training.total - progress.step)


def loader_of(training: Training, rows: Rows) -> Loader:
    return Loader(rows, training.recipe, training.loaded.processor, training.world.data_rank, training.world.data_size)


def look_up(training: Training, progress: Progress, events: Events, requests: StopRequests) -> tuple[Progress, Stop | None]:
    """Between two steps: hear whether any rank is asked to stop, evaluate if it is time. Collective: call on every rank."""
    grace = training.config.checkpoint.grace_seconds
    stop = agree_to_stop(training.world, requests, grace)
    if stop is None and evaluation_due(training, progress):
        progress = evaluated(training, progress, events, requests)
        stop = agree_to_stop(training.world, requests, grace)
    return progress, stop


def save_when_due(training: Training, progress: Progress, events: Events, saver: checkpoint.Saver, stop: Stop | None) -> str | None:
    """Save at a save point, at the end and before a stop; returns why a stop went without. Collective: call on every rank."""
    last, unsaved = stop is not None or progress.step == training.total, None
    if last or save_due(training.config, progress.step):
        attempt(training, events, progress.step, saver.finish)
        unsaved = None if stop is None else too_late(training.world, stop, saver.seconds)
        if unsaved is None:
            attempt(training, events, progress.step, partial(save, training, progress, saver), last)
    attempt(training, events, progress.step, saver.finish if last else saver.poll, last)
    return unsaved


def save_due(config: Config, step: int) -> bool:
    """Whether `step` is a save point: also where answers are sampled, which come from a checkpoint of their very step."""
    return any(step % every == 0 for every in (config.checkpoint.every, config.sample.every) if every)


def advance(training: Training, progress: Progress, events: Events, turns: list[Turn], after: Place) -> Progress:
    """Train one step, or skip its update if that is not finite, or a spike, and the budget allows. Collective: call on every rank."""
    chosen = training.config
    reached = replace(progress, step=progress.step + 1, place=after, validation_loss=None)
    try:
        numbers = train_step(training, turns, progress.step, progress.recent)
    except NotFiniteError as error:
        if progress.skipped >= chosen.train.skip_nonfinite:
            raise
        reached = replace(reached, skipped=progress.skipped + 1)
        events.say(f"warning: skipped update {reached.skipped} of train.skip_nonfinite: {chosen.train.skip_nonfinite}: {error}")
        events.note("skipped", reached.step, problem=str(error), skipped=reached.skipped)
        return reached
    if chosen.train.spike is not None:
        reached = replace(reached, recent=remember(progress.recent, numbers["loss"], numbers["grad_norm"]))
    if reached.step % chosen.log.every == 0 or reached.step == training.total:
        events.step(reached.step, numbers)
    return reached


def train_step(training: Training, turns: list[Turn], step: int, recent: Recent = ()) -> dict[str, float]:
    """One optimizer step over this rank's turns. The loss is a sum over all ranks divided by a count over all ranks, so nothing in it
    depends on how the samples were cut into micro-batches or spread over ranks. Collective: call on every rank.

    Raises `NotFiniteError`, on all ranks and before anything has changed, if the loss or the gradient is not finite, or, under
    `train.spike`, far beyond the `recent` ones.
    """
    started, world, train = time.perf_counter(), training.world, training.config.train
    counts = global_counts(world, turns)
    totals, weights = accumulate(training, turns, counts)
    if not training.optimizer.state:
        check_reached([parallel.plain_name(n) for n, p in training.model.named_parameters() if p.requires_grad and p.grad is None])
    norm = parallel.clip_gradients((parameter for group in training.optimizer.param_groups for parameter in group["params"]), train.clip)
    own = float(sum(turn.micro.tokens for turn in turns if turn.counts))
    *summed, tokens = data_sums(world, [*(float(total) for total in totals.values()), own])
    numbers = means(dict(zip(totals, summed, strict=True)), counts, weights)
    if not is_finite(numbers["loss"], norm):
        training.optimizer.zero_grad(set_to_none=True)
        raise not_finite(step + 1, numbers["loss"], norm, rows_of(training, turns))
    if problem := unusual(numbers["loss"], norm, recent, train.spike):
        training.optimizer.zero_grad(set_to_none=True)
        raise spiked(step + 1, problem, rows_of(training, turns))
    rate = optim.learning_rate(step, training.total, train)
    optim.update(training.optimizer, rate)
    speed = {"tokens": tokens, "tokens_per_second": tokens / (time.perf_counter() - started), "memory_gib": memory_gib(world.device)}
    return {**training.recipe.report(numbers), "grad_norm": norm, "lr": rate, **speed}


def global_counts(world: World, turns: list[Turn]) -> dict[str, float]:
    """Targets of each term over all ranks and micro-batches of a step. Collective: call on every rank."""
    names = sorted(turns[0].batch.targets)
    own = [float(sum(turn.batch.targets[name] for turn in turns if turn.counts)) for name in names]
    return dict(zip(names, data_sums(world, own), strict=True))


def accumulate(training: Training, turns: list[Turn], counts: dict[str, float]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Forward and backward of this rank's turns: each term's sum over them, and its weight. Collective: call on every rank."""
    world = training.world
    totals = {name: torch.zeros((), device=world.device) for name in counts}
    weights: dict[str, float] = {}
    for number, turn in enumerate(turns):
        parallel.prepare_backward(training.model, training.strategy, last=number == len(turns) - 1)
        torch.manual_seed(turn.micro.key)
        terms = training.recipe.loss(training.model, on_device(turn.batch, world.device))
        weights = {name: term.weight for name, term in terms.items()}
        # fully_shard averages over the shares of the data; times their number, the average is the sum.
        (objective(terms, counts) * (world.data_size if turn.counts else 0.0)).backward()
        for name in counts if turn.counts else ():
            totals[name] += terms[name].sum.detach()
    return totals, weights


def rows_of(training: Training, turns: list[Turn]) -> list[str]:
    """Where the rows of this step stand, on all ranks. Collective: call on every rank."""
    own = [training.rows.where(row) for turn in turns if turn.counts for row in turn.micro.ids]
    return [row for rows in gather(training.world, own)[:: training.world.tensor] for row in rows]


def objective(terms: dict[str, Term], counts: dict[str, float]) -> Tensor:
    """Σ weight · sum / count over the terms that have targets anywhere in this step; zero, but with a graph, if none has."""
    parts = [term.weight * term.sum / max(counts[name], 1.0) for name, term in terms.items() if term.weight]
    return torch.stack(parts).sum()


def means(summed: dict[str, float], counts: dict[str, float], weights: dict[str, float]) -> dict[str, float]:
    """Each term's mean, and the weighted total as `loss`."""
    each = {name: summed[name] / max(counts[name], 1.0) for name in summed}
    return {"loss": sum(weights[name] * each[name] for name in each), **each}


def evaluation_due(training: Training, progress: Progress) -> bool:
    """Whether these weights are to be evaluated and have not been. After a stop inside an evaluation the next process makes up for it."""
    if training.val is None or progress.step == 0 or progress.validation_loss is not None:
        return False
    return progress.step % training.config.eval.every == 0 or progress.step == training.total


def evaluated(training: Training, progress: Progress, events: Events, requests: StopRequests) -> Progress:
    """With the validation loss of this moment, or as it was if a stop came in between. Collective: call on every rank."""
    assert training.val is not None
    measured = evaluate(training, training.val, requests)
    if measured is None:
        return progress
    check_measured(progress.step, measured["loss"])
    events.evaluation(progress.step, measured)
    return replace(progress, validation_loss=measured["loss"])


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


def save(training: Training, progress: Progress, saver: checkpoint.Saver) -> None:
    """Begin a checkpoint of this moment. Collective: call on every rank."""
    if not training.optimizer.state:  # every update so far was skipped
        optim.restore_state(training.optimizer, 0)
    tensors = checkpoint.training_tensors(training.model, training.optimizer, training.loaded.buffers)
    state = {
        **training.identity,
        "buffers": sorted(training.loaded.buffers),
        "place": asdict(progress.place),
        "optimizer_steps": progress.step - progress.skipped,
        "skipped": progress.skipped,
        "recent": progress.recent,
        "validation_loss": progress.validation_loss,
        "world": training.world.size,
        "strategy": training.strategy,
    }
    saver.begin(progress.step, tensors, state, config.dump(training.config))


def on_device(batch: Batch, device: torch.device) -> Batch:
    return replace(batch, tensors={name: tensor.to(device, non_blocking=True) for name, tensor in batch.tensors.items()})


def memory_gib(device: torch.device) -> float:
    """Peak memory so far of this process, in GiB: the allocator's on a GPU, resident on a CPU."""
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak / 2**30


def _in_order(rows: Rows, micro_tokens: int) -> list[MicroBatch]:
    by_length = np.argsort(rows.lengths, kind="stable")
    groups = packing.fill(by_length, rows.lengths[by_length], micro_tokens)
    return [MicroBatch(tuple(int(row) for row in group), int(rows.lengths[group].sum()), 0) for group in groups]


def _by(size: int, micros: list[MicroBatch]) -> Iterator[tuple[MicroBatch, ...]]:
    for start in range(0, len(micros), size):
        yield tuple(micros[start : start + size])


def attempt(training: Training, events: Events, step: int, part: Callable[[], Path | None], last: bool = False) -> None:
    """One part of a save, and word of what it committed. If it fails, `checkpoint.on_failure` says whether the run ends, or the next save
    point tries again; after the `last` there is none. Collective: call on every rank."""
    try:
        folder = part()
    except UserError as error:
        if last or training.config.checkpoint.on_failure == "stop" or isinstance(error, NotFiniteError):
            raise
        events.say(f"warning: {error}; training goes on, and the next save point tries again")
        events.note("save failed", step, problem=str(error))
        return
    if folder is not None:
        events.note("committed", checkpoint.step_of(folder), folder=folder.name)
