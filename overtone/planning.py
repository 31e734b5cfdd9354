"""Plans of training runs from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overtone.training import list_files


@dataclass(frozen=True)
class TrainingPlan:
    """Plan of a training run: what it will take, and what would stop it. `print(plan)` prints the whole report."""

    problems: tuple[str, ...]
    """Problems to fix before training, each with the fix; empty if the run can start."""
    steps: int | None
    """Optimizer steps; None without data, unless `train.steps` is set."""
    seconds: float | None
    """Estimated time of training; None without `steps`, or without an estimate."""
    memory: float | None
    """Estimated peak memory of one GPU in GiB; None without an estimate."""
    fits: bool | None
    """True if that is less than the GPU has; None without an estimate."""
    largest_micro_batch: int | None
    """The largest `train.micro_tokens` that fits; None if none does, or without an estimate."""
    strategy: str | None
    """Sharding of the model over the GPUs; None without an estimate."""
    command: str | None
    """The command that trains like this in a terminal, on all GPUs of the plan; None without an estimate."""
    report: str
    """Everything, as `overtone plan` prints it."""

    def __str__(self) -> str:
        return self.report


def plan(
    recipe: str,
    settings: Mapping[str, object],
    *,
    config: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    gpu: str = "h100-80gb",
    gpus: int = 1,
    nodes: int = 1,
) -> TrainingPlan:
    """Estimate memory and time of a training run, and find problems that would stop it. Needs neither a GPU nor the weights of the base;
    with data it knows the number of steps.

    Args:
        recipe: as for `overtone.train`.
        settings: as for `overtone.train`.
        config: as for `overtone.train`.
        gpu: type of the GPUs: h200, h100-80gb, a100-80gb, a100-40gb, l40s, a10g, rtx-4090 and others; an error lists all.
        gpus: GPUs per machine.
        nodes: machines.

    Returns:
        The plan.

    Raises:
        UserError: for a wrong key or value, an unknown GPU, or a base model whose config cannot be found.
    """
    from overtone.finetune.cli.plan import estimate
    from overtone.finetune.config_sources import Arguments
    from overtone.finetune.hardware.gpu_specs import make_cluster
    from overtone.finetune.recipe import find_recipe, load_recipe
    from overtone.finetune.train import list_words, read_arguments, resolve_config

    cluster = make_cluster(gpu, gpus, nodes)
    arguments = Arguments(recipe, list_files(config), settings=settings)
    resolved = resolve_config(read_arguments(arguments))
    found, words = estimate(resolved, load_recipe(find_recipe(resolved.recipe)), cluster), list_words(arguments)
    best = None if found.prospect is None else found.prospect.best
    steps = resolved.train.steps or (None if found.sizes is None else found.sizes.total)
    return TrainingPlan(
        problems=found.problems,
        steps=steps,
        seconds=None if best is None or steps is None else steps * best.seconds.total,
        memory=None if best is None else best.memory.total / 2**30,
        fits=None if best is None else best.fits,
        largest_micro_batch=found.largest or None,
        strategy=None if best is None else str(best.arrangement),
        command=found.format_command(words),
        report="\n".join(found.format_lines(words)),
    )
