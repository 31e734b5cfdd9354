"""Which strategy for a model, a step and a cluster: of what fits, what takes the least time.

The Ultra-Scale Playbook (Hugging Face, 2025) goes the same way: fit in memory, reach the global batch, then throughput. The global batch is
given here, and turns without a micro-batch are in the time of its step. When times are alike, the simplest wins: ddp, zero1, zero2, fsdp,
hsdp, tensor parallelism. Tensor parallelism stays within a machine.

Times are rough: a machine's ceilings, ring collectives, and communication that hides behind computation as far as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from finetune.activations import Activations, Recomputing
from finetune.data_parallel import split_into_buckets
from finetune.gpus import EFFICIENCY, Cluster
from finetune.memory import FRAGMENTS, GIB, GRADIENT, Arrangement, Memory, Outline, Unit, gathered_bytes, memory, trained_size

HEAVIER: dict[Recomputing, tuple[Recomputing, ...]] = {
    "none": ("none", "selective", "full"),
    "selective": ("selective", "full"),
    "full": ("full",),
}
"""What may be tried when nothing fits: itself, then what needs less memory and more time."""
ALIKE = 1.03
"""Times within this ratio are the same."""
HOP = 10e-6
"""Seconds that a collective waits at each rank of its ring: what makes hundreds of ranks slow, however little they send."""
TENSOR_SIZES = (2, 4, 8)
SUMS = 7
"""Of states over a tensor-parallel group, for a block and micro-batch, as benchmarks/communication.py counts them: after attention and MLP,
and on the way back for each of the five matrices that read the same states (queries, keys, values, gate, up)."""


@dataclass(frozen=True)
class Work:
    """One optimizer step of a run."""

    outline: Outline
    activations: Callable[[Recomputing, int], Activations]
    """(recomputation, tensor-parallel ranks) → what one micro-batch needs."""
    micro_tokens: int
    global_batch_tokens: int
    compute: int
    """Bytes of an element in the compute type."""
    recomputing: Recomputing
    """As the config has it."""
    refuses_tensor: Callable[[int], str | None] = lambda _: None
    """Ranks → why that many cannot share this model's matrices; None if they can."""

    @property
    def micro_batches(self) -> int:
        return -(-self.global_batch_tokens // self.micro_tokens)


@dataclass(frozen=True)
class Seconds:
    """Of one optimizer step."""

    computing: float
    waiting: float
    """For what other ranks send, where nothing is left to compute meanwhile."""

    @property
    def total(self) -> float:
        return self.computing + self.waiting


@dataclass(frozen=True)
class Verdict:
    """What is known of an arrangement before it runs."""

    arrangement: Arrangement
    recomputing: Recomputing
    memory: Memory
    budget: float
    seconds: Seconds
    groups: int
    """Shares of the data."""
    busy: float
    """Share of the groups' turns that have a micro-batch."""
    tokens_per_second: float

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.budget


def arrangements(cluster: Cluster, refuses_tensor: Callable[[int], str | None], offload: bool = False) -> Iterator[Arrangement]:
    """Everything that this cluster allows, the simplest first. One rank has nothing to share."""
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


def choose(work: Work, cluster: Cluster, among: list[Arrangement]) -> list[Verdict]:
    """Every arrangement's verdict, the best first; with the config's recomputation, and with heavier ones if nothing fits otherwise."""
    verdicts: list[Verdict] = []
    for recomputing in HEAVIER[work.recomputing]:
        new = [judge(work, cluster, arrangement, recomputing) for arrangement in among]
        verdicts = ranked(new) + [verdict for verdict in verdicts if not any(verdict.arrangement == each.arrangement for each in new)]
        if verdicts[0].fits:
            return verdicts
    return verdicts


def ranked(verdicts: list[Verdict]) -> list[Verdict]:
    """What fits before what does not, the fast before the slow, and where times are alike the simple before the rest; `verdicts` come with
    the simplest first. What does not fit: what needs least first."""
    left, order = sorted((verdict for verdict in verdicts if verdict.fits), key=lambda each: each.seconds.total), []
    while left:
        alike = [verdict for verdict in left if verdict.seconds.total <= left[0].seconds.total * ALIKE]
        best = min(alike, key=verdicts.index)
        order.append(best)
        left.remove(best)
    return order + sorted((verdict for verdict in verdicts if not verdict.fits), key=lambda each: each.memory.total)


def judge(work: Work, cluster: Cluster, arrangement: Arrangement, recomputing: Recomputing) -> Verdict:
    traced = work.activations(recomputing, arrangement.tensor)
    groups = arrangement.ranks // arrangement.tensor
    turns = -(-work.micro_batches // groups)
    return Verdict(
        arrangement=arrangement,
        recomputing=recomputing,
        memory=memory(work.outline, arrangement, traced, work.compute),
        budget=cluster.budget,
        seconds=(seconds := time_of_step(work, cluster, arrangement, traced, turns)),
        groups=groups,
        busy=work.micro_batches / (turns * groups),
        tokens_per_second=work.global_batch_tokens / seconds.total,
    )


def time_of_step(work: Work, cluster: Cluster, arrangement: Arrangement, traced: Activations, turns: int) -> Seconds:
    """Of `turns` micro-batches a rank. A rank without one computes an empty one meanwhile."""
    once = traced.flops * work.micro_tokens / traced.positions / (cluster.gpu.speed * 1e12 * EFFICIENCY)
    if arrangement.ranks == 1:
        return Seconds(turns * once, 0.0)
    sent, hidden = communication(work, cluster, arrangement, turns, once)
    between_halves = tensor_traffic(work, cluster, arrangement) * turns
    return Seconds(turns * once, max(0.0, sent - hidden) + between_halves)


def communication(work: Work, cluster: Cluster, arrangement: Arrangement, turns: int, once: float) -> tuple[float, float]:
    """Seconds that gathering and reducing take in a step, and seconds of computation behind which they can hide. What is sent, and how
    often, is what real ranks send: benchmarks/communication.py counts it."""
    outline, shards, tensor = work.outline, arrangement.shards, arrangement.tensor
    units = (outline.root, *outline.units)

    def ring(size: float, ranks: int, beside: int) -> float:
        """Each rank sends its share on, around a ring, `beside` others."""
        across = cluster.nodes > 1 and ranks * beside > cluster.gpus
        # A machine's GPUs reach the next machine together, each by its own card; groups that run beside each other divide that.
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
    return turns * (each + (copy(arrangement.replicate, cluster.gpus) if arrangement.replicate > 1 else 0.0)), once * turns


def tensor_traffic(work: Work, cluster: Cluster, arrangement: Arrangement) -> float:
    """Seconds a micro-batch: a group sums its states `SUMS` times in each block, and nothing can be computed meanwhile."""
    size, outline = arrangement.tensor, work.outline
    states = work.micro_tokens * outline.hidden * work.compute
    return outline.blocks * SUMS * (2 * (size - 1) / size * states / (cluster.gpu.link * 1e9) + (size - 1) * HOP) if size > 1 else 0.0


def reason(verdict: Verdict, best: Verdict) -> str:
    """Why a verdict is not the best one: what does not fit, or what costs time."""
    needed = verdict.memory.total / GIB
    if not verdict.fits:
        lasting = verdict.memory.lasting / GIB
        name, size = max(grouped(verdict.memory).items(), key=lambda each: each[1])
        alone = f"; what lasts is {lasting:.1f} GiB alone" if lasting > verdict.budget / GIB else ""
        return f"needs {needed:.1f} of {verdict.budget / GIB:.1f} GiB, most of it {name}, {size / GIB:.1f} GiB{alone}"
    if verdict.busy < 0.9 * best.busy:
        return f"fits in {needed:.1f} GiB, but {1 - verdict.busy:.0%} of the ranks' turns would have no micro-batch"
    ratio = verdict.seconds.total / best.seconds.total
    if ratio > ALIKE:
        return f"fits in {needed:.1f} GiB, but a step takes {ratio:.2f} times as long, {verdict.seconds.waiting:.2f} s of it waiting"
    if ratio < 1 / ALIKE:
        return f"fits in {needed:.1f} GiB and is no slower"
    return f"fits in {needed:.1f} GiB, and is no faster"


def grouped(memory: Memory) -> dict[str, int]:
    """The terms by what one can do about them."""
    return {
        "weights, gradients and optimizer": memory.lasting,
        "gathered weights": memory.gathered,
        "whole gradients": memory.unreduced + memory.reducing,
        "activations": memory.activations + memory.working,
        "the loss": memory.loss,
    }


def largest_micro_batch(work: Work, verdict: Verdict, half: Activations) -> int:
    """Most positions of a micro-batch that fit, from the needs of this one and of one of about half its positions: bytes are linear in
    positions where attention never makes a matrix of them. 0 if not even the weights fit."""
    whole = work.activations(verdict.recomputing, verdict.arrangement.tensor)
    more = (whole.peak - half.peak) / (whole.positions - half.positions)
    room = verdict.budget - verdict.memory.total
    return max(0, int(whole.positions + room / (more * (1 + FRAGMENTS))))
