"""One optimizer step, independent of the number of ranks and of the micro-batches: global sums divided by global counts."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from overtone.finetune.config import Config
from overtone.finetune.data.batching import Loader, Order, RankBatch
from overtone.finetune.data.cached_samples import Rows
from overtone.finetune.data.mixture import MixedRows
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.process_group import World, gather_from_ranks, sum_over_data_ranks
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import base_kl_loss, optimizers
from overtone.finetune.monitoring.loss_spikes import Recent, check_gradients_exist, find_spike, is_finite, not_finite_error, spike_error
from overtone.finetune.monitoring.straggler_detection import RankTimes
from overtone.finetune.recipe import DIVERGENCE, REFERENCE, Batch, Loaded, Recipe, Term
from overtone.finetune.training.rollout_loop import RolloutLoop
from overtone.finetune.training.sample_metrics_preparation import SamplePlan


@dataclass(frozen=True)
class Training:
    """The parts of a run that do not change during training."""

    world: World
    config: Config
    recipe: Recipe
    loaded: Loaded
    model: nn.Module
    strategy: sharding.Strategy
    optimizer: torch.optim.AdamW
    rows: Rows | MixedRows
    val: Rows | MixedRows | None
    order: Order
    total: int
    """Optimizer steps of the whole run."""
    identity: dict[str, Any]
    """Keys and values that a checkpoint of this run must have (data, base, order, recipe)."""
    fixed: int | None = None
    """Length of every packed row in positions, for compiled blocks; None: the sum of its samples' lengths."""
    base: nn.Module | None = None
    """The frozen copy of the base that `train.base_distance` or the recipe's loss needs without adapters."""
    sampling: SamplePlan = field(default_factory=SamplePlan)
    """Plan for measuring answers to `sample.prompts`."""
    rank_times: RankTimes | None = None
    """The straggler report; None with one rank."""
    metrics: dict[str, None] = field(default_factory=dict)
    """Names of the recipe's metrics besides the loss, in order, for the console; filled by the first step or evaluation."""
    rollouts: RolloutLoop | None = None
    """Answers prompts, for a recipe with `Rollouts`."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the mixture's sources; none without a mixture."""
        return self.rows.names if isinstance(self.rows, MixedRows) else ()

    @property
    def validation_sources(self) -> tuple[str, ...]:
        """Names of the files of `data.val`, if it is a list."""
        return self.val.names if isinstance(self.val, MixedRows) else ()


def train_step(
    training: Training, turns: list[RankBatch], step: int, recent: Recent = (), before_update: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Take one optimizer step over this rank's turns. The loss is a sum over all ranks divided by a count over all ranks, so nothing in it
    depends on how the samples were cut into micro-batches or spread over ranks. Collective: call on every rank.

    `before_update` is called when weights and optimizer state are about to change.

    Raises `NotFiniteError`, on all ranks and before anything has changed, if the loss or the gradient is not finite, or, under
    `train.spike`, far beyond the `recent` ones.
    """
    started, world, train = time.perf_counter(), training.world, training.config.train
    generating: dict[str, float] = {}
    if training.rollouts is not None:
        training.rollouts.take_over_weights(training.model)
        turns = training.rollouts.answer(training.rows, turns, step + 1)
        generating["rollout_seconds"] = time.perf_counter() - started
    counting = time.perf_counter()
    counts = global_counts(world, turns, training.sources)
    waited = time.perf_counter() - counting
    reached = None if training.optimizer.state else set[str]()
    totals, weights = accumulate(training, add_divergence(training, turns, estimate_divergence(training, [turns])), counts, reached)
    if reached is not None:
        check_gradients_exist(sharding.find_unreached(training.model, reached, world))
    gradients = sharding.group_by_layout(
        parameter.grad for parameter, _ in optimizers.iterate_parameters(training.optimizer) if parameter.grad is not None
    )
    own_sums, norm = fetch_scalars(list(totals.values()), sharding.gradient_norm(gradients))
    own_tokens = float(sum(turn.micro.tokens for turn in turns if turn.counts))
    own_times = [] if training.rank_times is None else training.rank_times.take_own(waited)
    tokens, *summed = sum_over_data_ranks(world, [own_tokens, *own_sums, *own_times])
    sums = dict(zip(totals, summed, strict=False))
    numbers = compute_means({name: sums[name] for name in counts if name in weights}, counts, weights)
    if not is_finite(numbers["loss"], norm):
        training.model.zero_grad(set_to_none=True)
        raise not_finite_error(step + 1, numbers["loss"], norm, locate_rows(training, turns))
    if training.rollouts is not None:
        training.rollouts.check(numbers)
    # The loss of rollouts is about 0 by its nature, since advantages are centred, so no multiple of its median says anything.
    if problem := find_spike(numbers["loss"] if training.rollouts is None else None, norm, recent, train.spike):
        training.model.zero_grad(set_to_none=True)
        raise spike_error(step + 1, problem, locate_rows(training, turns))
    sharding.clip_gradients(gradients, norm, train.clip)
    rate = optimizers.learning_rate(step, training.total, train)
    before_update()
    optimizers.update_parameters(training.optimizer, rate)
    seconds = time.perf_counter() - started
    if training.rank_times is not None:  # each rank has its own, so the sum over ranks that share matrices is not divided
        training.rank_times.note_all([value * world.tensor for value in summed[len(totals) :]], seconds)
    speed = {"tokens": tokens, "tokens_per_second": tokens / seconds, "memory_gib": memory_gib(world.device), **generating}
    by_source = report_sources(training, sums, counts, weights)
    return {**report_means(training, numbers, weights), "grad_norm": norm, "lr": rate, **speed, **by_source}


def global_counts(world: World, turns: list[RankBatch], sources: Sequence[str] = ()) -> dict[str, float]:
    """Return the number of targets of each loss term over all ranks and micro-batches of a step; also of each of a mixture's `sources`, as
    `mix/SOURCE/TERM`. Collective: call on every rank."""
    names = sorted(turns[0].batch.targets)
    own = {name: float(sum(turn.batch.targets[name] for turn in turns if turn.counts)) for name in names}
    for number, source in enumerate(sources):
        from_source = [turn.batch for turn in turns if turn.counts and turn.micro.source == number]
        own |= {f"mix/{source}/{name}": float(sum(batch.targets[name] for batch in from_source)) for name in names}
    return dict(zip(own, sum_over_data_ranks(world, [*own.values()]), strict=True))


def estimate_divergence(training: Training, rounds: Iterable[list[RankBatch]]) -> float | None:
    """The estimate of the recipe's `Divergence` over all samples of these turns; None if its loss needs none. Collective: call on every
    rank."""
    reference, device = training.recipe.reference, training.world.device
    if reference is None or reference.divergence is None:
        return None
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for turns in rounds:
        count += sum(len(turn.micro.ids) for turn in turns if turn.counts)
        for batch, counts in list_mismatched(training.world, turns):
            moved = copy_to_device(batch, device)
            own, base = base_kl_loss.predict_in_eval_mode(reference.predict, training.model, moved), moved.tensors.get(REFERENCE)
            if base is None:
                base = base_kl_loss.predict_with_base(reference.predict, training.model, training.base, moved)
            if counts:
                total = total + (own.double() - base.double()).sum()
    whole, samples = sum_over_data_ranks(training.world, [float(total), float(count)])
    return whole / samples


def list_mismatched(world: World, turns: list[RankBatch]) -> Iterator[tuple[Batch, bool]]:
    """Yield the `mismatched` batches of this rank, each with whether it counts. Forwards are collective if the model is sharded: a rank
    with fewer batches repeats its last one. Collective: call on every rank."""
    most = map(max, zip(*gather_from_ranks(world, [len(turn.mismatched) for turn in turns]), strict=True))
    for turn, forwards in zip(turns, most, strict=True):
        for number in range(forwards):
            yield turn.mismatched[min(number, len(turn.mismatched) - 1)], turn.counts and number < len(turn.mismatched)


def add_divergence(training: Training, turns: list[RankBatch], estimate: float | None) -> list[RankBatch]:
    """The turns with the estimate in their batches."""
    if estimate is None:
        return turns
    added = {DIVERGENCE: torch.tensor(estimate, dtype=torch.float64, device=training.world.device)}
    return [replace(turn, batch=replace(turn.batch, tensors={**turn.batch.tensors, **added})) for turn in turns]


def report_sources(training: Training, sums: dict[str, float], counts: dict[str, float], weights: dict[str, float]) -> dict[str, float]:
    """Return the metrics of each source that had targets in this step, as `mix/SOURCE/METRIC`, from global sums and counts. A term without
    targets has no mean, so neither the term nor metrics derived from it are reported; it counts as 0 in the loss."""
    found: dict[str, float] = {}
    for source in training.sources:
        keys = {name: f"mix/{source}/{name}" for name in weights}
        own = {name: counts[key] for name, key in keys.items()}
        if any(own.values()):
            means = compute_means({name: sums[key] for name, key in keys.items()}, own, weights)
            means |= {name: math.nan for name, count in own.items() if not count}
            reported = training.recipe.report(means)
            found |= {f"mix/{source}/{name}": value for name, value in reported.items() if not math.isnan(value)}
    return found


def accumulate(
    training: Training, turns: list[RankBatch], counts: dict[str, float], reached: set[str] | None = None
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Run forward and backward of this rank's turns; return the sum (scalar) for each of `counts`, and each term's weight. `reached`: gets
    the names of the parameters to which these turns bring gradients. Collective: call on every rank."""
    world = training.world
    totals = {name: torch.zeros((), device=world.device) for name in counts}
    weights: dict[str, float] = {}
    for number, turn in enumerate(turns):
        sharding.prepare_backward(training.model, training.strategy, last=number == len(turns) - 1)
        seed_generators(turn.micro.key, world.device)
        terms = training.recipe.loss(training.model, copy_to_device(turn.batch, world.device))
        check_terms(terms, turn.batch.targets)
        weights = {name: term.weight for name, term in terms.items()}
        watched = [] if reached is None else sharding.watch_reached(training.model, reached)
        # Gradients are averaged over the data-parallel ranks; multiplied by their number, the average is the sum.
        (compute_objective(terms, counts) * (world.data_size if turn.counts else 0.0)).backward()
        for handle in watched:
            handle.remove()
        for name in terms if turn.counts else ():
            totals[name] += terms[name].sum.detach()
            if turn.micro.source is not None:
                totals[f"mix/{training.sources[turn.micro.source]}/{name}"] += terms[name].sum.detach()
    return totals, weights


def fetch_scalars(totals: list[Tensor], norm: Tensor) -> tuple[list[float], float]:
    """Return the exact values of scalar tensors. This is the only place in a step where the host waits for the device.

    `totals` are on the run's device; `norm` is where the gradients are, which `parallel.offload` keeps on the host.
    """
    there = torch.stack([total.double() for total in totals]).to(norm.device)
    *values, value = torch.cat([there, norm.double().unsqueeze(0)]).tolist()
    return values, value


def seed_generators(key: int, device: torch.device) -> None:
    """Seed the generators that a step uses as `torch.manual_seed` does, which without a GPU formats a stack trace at each call."""
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)


def locate_rows(training: Training, turns: list[RankBatch]) -> list[str]:
    """Return file and line of the rows of this step, on all ranks. Collective: call on every rank."""
    own = [training.rows.where(row) for turn in turns if turn.counts for row in turn.micro.ids]
    return [row for rows in gather_from_ranks(training.world, own)[:: training.world.tensor] for row in rows]


def check_terms(terms: Mapping[str, Term], targets: Mapping[str, int]) -> None:
    """Raises `UserError` where what a recipe's `loss` returned does not fit the `targets` of the batch that its `collate` made."""
    if unknown := sorted(terms.keys() - targets.keys()):
        known = ", ".join(targets) or "no term"
        raise UserError(f"the recipe's loss returned {', '.join(unknown)}, but its batch counts the targets of {known}")
    for name, term in terms.items():
        if term.sum.shape:
            raise UserError(f"the recipe's loss returned {name} with shape {[*term.sum.shape]}; Term.sum must be the sum over all targets")


def compute_objective(terms: dict[str, Term], counts: dict[str, float]) -> Tensor:
    """Σ weight · sum / count over the loss terms (scalar). Without any targets in this step it is zero, but still has a graph."""
    parts = [term.weight * term.sum / max(counts[name], 1.0) for name, term in terms.items() if term.weight]
    return torch.stack(parts).sum()


def compute_means(summed: dict[str, float], counts: dict[str, float], weights: dict[str, float]) -> dict[str, float]:
    """Return each term's mean, and the weighted total as `loss`."""
    each = {name: summed[name] / max(counts[name], 1.0) for name in summed}
    return {"loss": sum(weights[name] * each[name] for name in each), **each}


def report_means(training: Training, means: dict[str, float], weights: dict[str, float]) -> dict[str, float]:
    """The recipe's report of the means. Terms of weight 0, and metrics that the recipe derived, are noted in `training.metrics`."""
    reported = training.recipe.report(means)
    training.metrics.update(dict.fromkeys(name for name in reported if name != "loss" and not weights.get(name)))
    return reported


def make_loader(training: Training, rows: Rows | MixedRows) -> Loader:
    world = training.world
    pinned, processor = world.device.type == "cuda", training.loaded.processor
    largest = training.config.train.micro_tokens
    return Loader(rows, training.recipe, world.data_rank, world.data_size, pinned, training.fixed, processor, largest)


def copy_to_device(batch: Batch, device: torch.device) -> Batch:
    return replace(batch, tensors={name: tensor.to(device, non_blocking=True) for name, tensor in batch.tensors.items()})


def memory_gib(device: torch.device) -> float:
    """Peak memory so far of this process, in GiB: the allocator's on a GPU, resident on a CPU."""
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak / 2**30
