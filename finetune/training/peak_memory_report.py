"""Reports that compare the memory of a run with its plan: before its first step on a GPU, and when memory ran out.

This module imports the planner, so `train` imports it only when it prints one of them. The report of missing memory compares parts, not
single terms: a device reports current and peak memory, but not its purpose. Persistent memory (weights, gradients, optimizer) is counted
from the tensors; temporary memory is the peak without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from overtone.finetune.config import Config, Model, Parallel, Train
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.process_group import World
from overtone.finetune.planning.memory import CONTEXT, GIB, Arrangement, Memory, estimate_memory
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.planning.plan_report import TERMS
from overtone.finetune.recipe import Recipe
from overtone.finetune.training.step import Training

LARGER = 1.1
"""A part up to this ratio above its plan counts as planned."""


@dataclass(frozen=True)
class Used:
    """Memory use of one device, in bytes."""

    wanted: int
    """Size of the failed allocation; 0 if unknown."""
    lasting: int
    """Weights, gradients and optimizer state."""
    passing: int
    """Peak of all other tensors, including the failed allocation."""
    outside: int
    """Memory outside of tensors: CUDA context, libraries, fragmentation, other processes on the device."""
    all: int
    """Total memory of the device."""


def plan_memory(config: Config, recipe: Recipe, world: World) -> Memory:
    """Return the memory estimate of this run on these ranks, as in `overtone plan`."""
    foreseen, split = estimate_run(config, recipe), config.parallel
    strategy = sharding.choose_strategy(config.parallel, config.train, os.environ)
    arrangement = Arrangement(strategy, world.size, split.replicate, split.tensor, split.offload)
    work = foreseen.work
    return estimate_memory(foreseen.outline, arrangement, work.activations(work.recomputing, split.tensor), work.compute)


def describe_memory(training: Training) -> str:
    """Compare the estimated peak of this process's GPU, by terms, with its memory. A failed estimate stops nothing."""
    card = torch.cuda.get_device_properties(training.world.device)
    try:
        planned = plan_memory(training.config, training.recipe, training.world)
    except Exception as error:  # only an estimate: the run may fit
        return f"no estimate ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    return compare_with_card(planned, card.total_memory, card.name)


def compare_with_card(planned: Memory, available: int, name: str) -> str:
    """Estimate and size of a GPU, with the terms of a gigabyte's tenth and more, the largest first."""
    terms = sorted(((size, TERMS[term]) for term, size in planned.terms.items() if size >= 0.05 * GIB), reverse=True)
    verdict = "" if planned.total <= available else "; this will probably NOT FIT: see `overtone plan` with these settings"
    parts = ", ".join(f"{term} {size / GIB:.1f}" for size, term in terms)
    return f"estimated peak {planned.total / GIB:.1f} of {available / GIB:.1f} GiB of a {name}{verdict} ({parts})"


def describe_shortage(problem: str, wanted: int, config: Config, recipe: Recipe, world: World, training: Training | None) -> str:
    """Return the message: the failed allocation, the memory use compared with the plan, and remedies. `problem`: torch's message. `wanted`:
    bytes of the failed allocation, 0 if unknown."""
    used = measure_memory(wanted, world.device, training)
    first, *_ = problem.partition("\n")
    lines = [f"out of memory on rank {world.rank} ({world.device}): {first}"]
    planned: Memory | None = None
    try:
        planned = plan_memory(config, recipe, world)
    except Exception as error:  # the run has failed already, and its message must not depend on the plan
        lines.append(f"  no plan available ({type(error).__name__}: {error})")
    lines += compare_with_plan(used, planned)
    weights_first = used is not None and used.lasting > used.passing
    longest = 0 if training is None else max(int(rows.lengths.max()) for rows in (training.rows, training.val) if rows is not None)
    remedies = suggest_remedies(config.model, config.train, config.parallel, world, longest, weights_first)
    return "\n".join([*lines, "What helps:", *(f"  {line}" for line in remedies)])


def measure_memory(wanted: int, device: torch.device, training: Training | None) -> Used | None:
    """Return the memory use of this process's device; None on a CPU, for which torch has no counters."""
    if device.type != "cuda":
        return None
    free, everything = torch.cuda.mem_get_info(device)
    lasting = 0 if training is None else count_lasting_bytes(training)
    outside = everything - free - torch.cuda.memory_allocated(device)
    return Used(wanted, lasting, max(0, torch.cuda.max_memory_allocated(device) + wanted - lasting), max(0, outside), everything)


def count_lasting_bytes(training: Training) -> int:
    """Return the bytes of weights, gradients and optimizer state on the device."""
    replica = sharding.replica_of(training.model)
    if replica is not None and replica.weights:
        parts = replica.lasting()
    else:
        parts = [sharding.local_shard(parameter) for parameter in training.model.parameters()]
        parts += [sharding.local_shard(parameter.grad) for parameter in training.model.parameters() if parameter.grad is not None]
    parts += [] if training.base is None else [sharding.local_shard(parameter) for parameter in training.base.parameters()]
    parts += [value for state in training.optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return sum(part.numel() * part.element_size() for part in parts if part.device.type == training.world.device.type)


def compare_with_plan(used: Used | None, planned: Memory | None) -> Iterator[str]:
    """Yield one line per part, with its plan."""
    passing = None if planned is None else planned.allocated - planned.lasting
    own = ("weights, gradients and optimizer", "activations, loss and gathered weights", "outside of tensors")
    if used is None:
        if planned is not None:
            yield f"  the plan: {own[0]} {_format_gib(planned.lasting)}, {own[1]} {_format_gib(planned.allocated - planned.lasting)}"
        return
    plans = (None, None, None) if planned is None else (planned.lasting, passing, planned.overhead)
    larger = 0
    for name, size, foreseen in zip(own, (used.lasting, used.passing, used.outside), plans, strict=True):
        verdict = ""
        if foreseen is not None:
            beyond = size > LARGER * foreseen + 0.1 * GIB
            larger += beyond
            verdict = f"; planned: {_format_gib(foreseen)}{', LARGER than planned' if beyond else ''}"
        yield f"  {name}: {_format_gib(size)}{verdict}"
    if used.outside > 2 * CONTEXT and (planned is None or used.outside > LARGER * planned.overhead):
        yield "  other processes may use this device (see nvidia-smi), or the memory is fragmented"
    if planned is not None and not larger:
        name, size = max(planned.terms.items(), key=lambda term: term[1])
        limit = f"{_format_gib(planned.total)} of {_format_gib(used.all)}"
        yield f"  as planned, and the plan needs {limit}; its largest term is {name}, {_format_gib(size)}"


def suggest_remedies(model: Model, train: Train, parallel: Parallel, world: World, longest: int, weights_first: bool) -> list[str]:
    """Return the three config keys that help most, with values; those for the larger part first. `longest`: positions of the longest
    sample."""
    half = max(longest, train.micro_tokens // 2)
    batch = [
        f"--train.micro_tokens {half} (now {train.micro_tokens}; it belongs to the order of the samples, so choose a new --run.dir)"
        if half < train.micro_tokens
        else "",
        f"--train.activation_checkpointing full (now {train.activation_checkpointing}; the same run can resume with it)"
        if train.activation_checkpointing != "full"
        else "",
    ]
    sharded = sharding.choose_strategy(parallel, train, os.environ) in ("fsdp", "hsdp")
    weights = [
        "--parallel.strategy fsdp (the same run can resume with it)" if world.size > 1 and not sharded else "",
        "--parallel.offload true (weights and AdamW in host memory; the same run can resume with it)"
        if world.device.type == "cuda" and not parallel.offload
        else "",
        "--model.lora '{rank: 16}' (another run: choose a new --run.dir)" if model.lora is None else "",
        "--model.quantization nf4 (another run: choose a new --run.dir)" if model.lora and not model.quantization else "",
    ]
    chosen = [*weights, *batch] if weights_first else [*batch, *weights]
    return [*filter(None, chosen), "more or larger GPUs: see `overtone plan`"][:3]


def _format_gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
