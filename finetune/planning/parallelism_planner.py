"""Parallelism planner: among the strategies that fit into GPU memory, choose the one with the shortest estimated step time.

It follows the Ultra-Scale Playbook (Hugging Face, 2025): fit into memory, reach the global batch size, then maximize throughput. The global
batch size is given, and idle ranks count in its step time. If times are nearly equal, the simplest strategy wins, in this order: ddp,
zero1, zero2, fsdp, hsdp, tensor parallelism. Tensor parallelism stays within a machine.

Step times are rough: peak hardware speeds times an efficiency, ring collectives, and communication fully overlapped with computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from overtone.finetune.distributed.ddp_replication import split_into_buckets
from overtone.finetune.hardware.gpu_specs import EFFICIENCY, Cluster
from overtone.finetune.planning.activation_memory import Activations, Recomputing
from overtone.finetune.planning.memory import (
    GIB,
    GRADIENT,
    Arrangement,
    Memory,
    Outline,
    Unit,
    estimate_memory,
    gathered_bytes,
    trained_size,
)

HEAVIER: dict[Recomputing, tuple[Recomputing, ...]] = {
    "none": ("none", "selective", "full"),
    "selective": ("selective", "full"),
    "full": ("full",),
}
"""Levels of activation checkpointing to try if nothing fits: the configured one, then those with less memory and more time."""
EQUAL_RATIO = 1.03
"""Step times within this ratio count as equal."""
HOP = 10e-6
"""Latency of one hop of a ring collective, in seconds. With hundreds of ranks it dominates, however little is sent."""
SEARCHED = 16
"""Largest micro-batch of the search, as a multiple of the configured one: a trace takes time in proportion to its samples."""
TRACES = 6
"""Maximum number of traces of that search."""
CLOSE = 0.02
"""The search ends when the largest micro-batch is known to this fraction."""
SHORTEST = 64
"""Positions below which that search traces nothing: a recipe's filler may need some for its prefix."""
TENSOR_SIZES = (2, 4, 8)
SUMS = 7
"""All-reduces of the hidden states over a tensor-parallel group, per block and micro-batch, as counted by
workshop/benchmarks/communication.py: after attention and MLP, and in the backward pass one for each of the five
matrices that read the same states (query, key, value, gate, up)."""


@dataclass(frozen=True)
class Work:
    """The work of one optimizer step."""

    outline: Outline
    activations: Callable[[Recomputing, int], Activations]
    """(activation checkpointing, tensor-parallel ranks) → memory of one micro-batch."""
    micro_tokens: int
    global_batch_tokens: int
    compute: int
    """Bytes per element of the compute type."""
    recomputing: Recomputing
    """Activation checkpointing as configured."""
    refuses_tensor: Callable[[int], str | None] = lambda _: None
    """Number of tensor-parallel ranks → why this model cannot be split over that many; None if it can."""

    @property
    def micro_batches(self) -> int:
        return -(-self.global_batch_tokens // self.micro_tokens)


@dataclass(frozen=True)
class Seconds:
    """Estimated duration of one optimizer step."""

    computing: float
    waiting: float
    """Communication that does not overlap with computation."""

    @property
    def total(self) -> float:
        return self.computing + self.waiting


@dataclass(frozen=True)
class LayoutEstimate:
    """Estimated memory and step time of a parallel layout."""

    arrangement: Arrangement
    recomputing: Recomputing
    memory: Memory
    budget: float
    seconds: Seconds
    groups: int
    """Data-parallel groups."""
    busy: float
    """Fraction of the groups' turns that have a micro-batch."""
    tokens_per_second: float

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.budget


def list_arrangements(cluster: Cluster, refuses_tensor: Callable[[int], str | None], offload: bool = False) -> Iterator[Arrangement]:
    """Yield all parallel layouts that this cluster allows, the simplest first. On one rank: only ddp."""
    ranks = cluster.ranks
    if ranks == 1:
        yield Arrangement("ddp", 1, offload=offload)
        return
    for strategy in ("ddp", "zero1", "zero2", "fsdp"):
        yield Arrangement(strategy, ranks, offload=offload)
    for copies in range(2, cluster.nodes + 1):
        if cluster.nodes % copies == 0 and ranks > copies:
            yield Arrangement("hsdp", ranks, replicate=copies, offload=offload)
    for size in TENSOR_SIZES:
        if cluster.gpus % size == 0 and refuses_tensor(size) is None:
            yield Arrangement("fsdp", ranks, tensor=size, offload=offload)


def choose_layouts(work: Work, cluster: Cluster, among: list[Arrangement]) -> list[LayoutEstimate]:
    """Estimates of all layouts, the best first, with the configured activation checkpointing, or a stronger one if nothing fits."""
    verdicts: list[LayoutEstimate] = []
    for recomputing in HEAVIER[work.recomputing]:
        new = [estimate_layout(work, cluster, arrangement, recomputing) for arrangement in among]
        verdicts = rank_layouts(new) + [verdict for verdict in verdicts if not any(verdict.arrangement == each.arrangement for each in new)]
        if verdicts[0].fits:
            return verdicts
    return verdicts


def rank_layouts(verdicts: list[LayoutEstimate]) -> list[LayoutEstimate]:
    """Sort: layouts that fit come first, by step time, and by simplicity if times are nearly equal; the rest follow by memory. `verdicts`
    must have the simplest layout first."""
    left, order = sorted((verdict for verdict in verdicts if verdict.fits), key=lambda each: each.seconds.total), []
    while left:
        equal = [verdict for verdict in left if verdict.seconds.total <= left[0].seconds.total * EQUAL_RATIO]
        best = min(equal, key=verdicts.index)
        order.append(best)
        left.remove(best)
    return order + sorted((verdict for verdict in verdicts if not verdict.fits), key=lambda each: each.memory.total)


def estimate_layout(work: Work, cluster: Cluster, arrangement: Arrangement, recomputing: Recomputing) -> LayoutEstimate:
    """Estimate memory and step time of one layout."""
    traced = work.activations(recomputing, arrangement.tensor)
    groups = arrangement.ranks // arrangement.tensor
    turns = -(-work.micro_batches // groups)
    return LayoutEstimate(
        arrangement=arrangement,
        recomputing=recomputing,
        memory=estimate_memory(work.outline, arrangement, traced, work.compute),
        budget=cluster.budget,
        seconds=(seconds := estimate_step_time(work, cluster, arrangement, traced, turns)),
        groups=groups,
        busy=work.micro_batches / (turns * groups),
        tokens_per_second=work.global_batch_tokens / seconds.total,
    )


def estimate_step_time(work: Work, cluster: Cluster, arrangement: Arrangement, traced: Activations, turns: int) -> Seconds:
    """Duration of a step with `turns` micro-batches per rank. A rank without a micro-batch runs a filler, so it takes as long."""
    once = traced.flops * work.micro_tokens / traced.positions / (cluster.gpu.speed * 1e12 * EFFICIENCY)
    if arrangement.ranks == 1:
        return Seconds(turns * once, 0.0)
    sent, hidden = estimate_communication(work, cluster, arrangement, turns, once)
    between_halves = estimate_tensor_traffic(work, cluster, arrangement) * turns
    return Seconds(turns * once, max(0.0, sent - hidden) + between_halves)


def estimate_communication(work: Work, cluster: Cluster, arrangement: Arrangement, turns: int, once: float) -> tuple[float, float]:
    """Return the seconds per step for all-gathers and reductions, and seconds of computation with which they can overlap. The sizes and
    numbers of the collectives are those that workshop/benchmarks/communication.py measures on real ranks."""
    outline, shards, tensor = work.outline, arrangement.shards, arrangement.tensor
    units = (outline.root, *outline.units)

    def ring(size: float, ranks: int, beside: int) -> float:
        """Return the seconds of a ring collective over `size` bytes; `beside` such rings run at the same time."""
        across = cluster.nodes > 1 and ranks * beside > cluster.gpus
        # All GPUs of a machine share its network bandwidth, so rings that run at the same time divide it.
        speed = 1e9 * (min(cluster.gpu.link, cluster.gpu.fabric / beside) if across else cluster.gpu.link)
        return (ranks - 1) / ranks * size / speed + (ranks - 1) * HOP if size else 0.0

    def beside(unit: Unit) -> int:
        return tensor if any(weight.in_block for weight in unit.weights) else 1

    def gather(gathered: tuple[Unit, ...]) -> float:
        return sum(ring(gathered_bytes(unit, tensor), shards // beside(unit), beside(unit)) for unit in gathered)

    def average() -> float:
        sizes = [weight.size for weight in outline.weights if weight.trained]
        left = iter(sizes)
        buckets = [sum(islice(left, count)) for count in split_into_buckets(sizes)]
        return sum(ring(2 * GRADIENT * size, arrangement.ranks, 1) for size in buckets)

    def copy(ranks: int, groups: int) -> float:
        return sum(ring(2 * GRADIENT * trained_size(unit, tensor) / shards, ranks, groups) for unit in units)

    reduce = sum(ring(GRADIENT * trained_size(unit, tensor), shards // beside(unit), beside(unit)) for unit in units)
    match arrangement.strategy:
        case "ddp":
            return average() if arrangement.replicated else copy(arrangement.ranks, 1), once * 2 / 3
        case "zero1":
            return gather(units) + reduce, once
        case "zero2":
            return gather(units) + turns * reduce, once * turns
    each = gather(units) + gather(outline.units) + reduce  # the root stays gathered for the backward pass
    copies = copy(arrangement.replicate, cluster.gpus) if arrangement.replicate > 1 else 0.0  # once per step (torch 2.13 or newer)
    return turns * each + copies, once * turns


def estimate_tensor_traffic(work: Work, cluster: Cluster, arrangement: Arrangement) -> float:
    """Return the seconds per micro-batch for tensor parallelism: `SUMS` all-reduces of the states in each block, which do not overlap."""
    size, outline = arrangement.tensor, work.outline
    states = work.micro_tokens * outline.hidden * work.compute
    return outline.blocks * SUMS * (2 * (size - 1) / size * states / (cluster.gpu.link * 1e9) + (size - 1) * HOP) if size > 1 else 0.0


def explain_rejection(verdict: LayoutEstimate, best: LayoutEstimate) -> str:
    """Return why a layout was not chosen: it does not fit, or it is slower."""
    needed = verdict.memory.total / GIB
    if not verdict.fits:
        lasting = verdict.memory.lasting / GIB
        name, size = max(group_terms(verdict.memory).items(), key=lambda each: each[1])
        alone = f"; weights, gradients and optimizer alone take {lasting:.1f} GiB" if lasting > verdict.budget / GIB else ""
        return f"needs {needed:.1f} of {verdict.budget / GIB:.1f} GiB, most of it for {name}, {size / GIB:.1f} GiB{alone}"
    if verdict.busy < 0.9 * best.busy:
        return f"fits in {needed:.1f} GiB, but {1 - verdict.busy:.0%} of the ranks' turns would have no micro-batch"
    ratio = verdict.seconds.total / best.seconds.total
    if ratio > EQUAL_RATIO:
        return f"fits in {needed:.1f} GiB, but a step takes {ratio:.2f} times as long, with {verdict.seconds.waiting:.2f} s of waiting"
    if ratio < 1 / EQUAL_RATIO:
        return f"fits in {needed:.1f} GiB and is not slower"
    return f"fits in {needed:.1f} GiB and is not faster"


def group_terms(memory: Memory) -> dict[str, int]:
    """Return the memory terms, grouped by what reduces them."""
    return {
        "weights, gradients and optimizer": memory.lasting,
        "gathered weights": memory.gathered,
        "full gradients": memory.unreduced + memory.reducing,
        "activations": memory.activations + memory.working,
        "the loss": memory.loss,
    }


def largest_micro_batch(work: Work, verdict: LayoutEstimate, trace: Callable[[int], Activations]) -> int:
    """Largest micro-batch, in positions, that fits with this layout, at most `SEARCHED` times the configured one; 0 if none fits.

    `trace`: returns the memory of a micro-batch of about that many positions under the layout's activation checkpointing and tensor
    parallelism. The peak of a step is the maximum over its moments, and the moment moves: in a short micro-batch it is in the loss, whose
    fp32 gradient of the output layer does not grow with positions; in a long one it is in the backward pass of a block, which does. So the
    memory of a long micro-batch cannot be extrapolated from short ones. This searches by the secant method with traces near the result.
    """

    def measure(traced: Activations) -> tuple[int, float]:
        """(positions, bytes by which they exceed the budget)"""
        memory = estimate_memory(work.outline, verdict.arrangement, traced, work.compute)
        return traced.positions, memory.total - verdict.budget

    limit, positions = SEARCHED * work.micro_tokens, work.micro_tokens
    before = fits = measure(Activations(0, 0, 0, 0, 0.0, 0))
    exceeds: tuple[int, float] | None = None
    for _ in range(TRACES if fits[1] <= 0 else 0):
        found = measure(trace(positions))
        if found[1] > 0:
            exceeds = found
        else:
            before, fits = fits, found
        if exceeds is None and positions >= limit:
            break
        target = min(limit, find_zero(fits, exceeds or before, limit))
        if fits[0] == 0:  # without positions there is no loss either, so that a line from there is too low
            target = min(target, positions // 2)
        if target <= (1 + CLOSE) * fits[0] or target < min(SHORTEST, work.micro_tokens):
            break
        positions = target
    if exceeds is None or not fits[0]:
        return fits[0]
    return max(fits[0], find_zero(fits, exceeds, limit))  # memory is convex in positions, so that what is on the line fits


def find_zero(one: tuple[int, float], other: tuple[int, float], most: int) -> int:
    """Return where the line through two points (x, y) is 0, rounded down; `most` if it does not rise."""
    slope = (other[1] - one[1]) / (other[0] - one[0]) if other[0] != one[0] else 0.0
    return int(one[0] - one[1] / slope) if slope > 0 else most
