"""Plan of a run on a cluster: the chosen parallelism strategy, the largest micro-batch that fits, and problems before training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from overtone.finetune.checkpointing import disk_space
from overtone.finetune.config import on_disk
from overtone.finetune.data.run_sizes import RunSizes, settle_sizes
from overtone.finetune.errors import UserError
from overtone.finetune.hardware.gpu_specs import Cluster
from overtone.finetune.modeling import optimizers, quantization
from overtone.finetune.planning.data_preview import DataPreview, preview_data
from overtone.finetune.planning.memory import GIB, Arrangement
from overtone.finetune.planning.meta_device_estimate import RunEstimate, has_weights
from overtone.finetune.planning.parallelism_planner import (
    LayoutEstimate,
    choose_layouts,
    estimate_layout,
    largest_micro_batch,
    list_arrangements,
)
from overtone.finetune.recipe import Recipe
from overtone.finetune.storage.hub_download import commit_of
from overtone.finetune.storage.strict_json import first_line


@dataclass(frozen=True)
class RunPlan:
    """A run on a cluster, with an estimate of each parallel layout."""

    foreseen: RunEstimate
    cluster: Cluster
    verdicts: tuple[LayoutEstimate, ...]
    """The chosen one first: the one that the config sets, or the best."""
    configured: bool
    """True if the config sets the strategy."""

    @property
    def best(self) -> LayoutEstimate:
        return self.verdicts[0]

    @cached_property
    def largest(self) -> int:
        """Largest micro-batch, in positions, that fits with the chosen strategy; 0 if none fits. The search ends at
        `parallelism_planner.SEARCHED` times the configured one."""
        best = self.best
        return largest_micro_batch(
            self.foreseen.work, best, lambda positions: self.foreseen.activations(positions, best.recomputing, best.arrangement.tensor)
        )

    def problems(self, seen: DataPreview | str | None) -> Iterator[str]:
        """Yield the problems that would stop the run later. `seen`: the result of `look_at_data`."""
        foreseen = self.foreseen
        base = Path(str(foreseen.config.model.source))
        if not has_weights(base) and commit_of(base) is None:  # training downloads those of a model on the hub
            yield f"model.source: {base} contains no *.safetensors; download the weights before training"
        yield from (f"model.source: {misfit}" for misfit in foreseen.misfits[:5])
        yield from error_messages(lambda: quantization.check(foreseen.config.model))
        yield from error_messages(lambda: optimizers.check(foreseen.config.train, foreseen.config.model, foreseen.config.parallel))
        yield from error_messages(lambda: disk_space.check_room(foreseen.config.run.dir, checkpoint_size(foreseen)))
        if not self.best.fits:
            yield f"out of memory: {self.best.memory.total / GIB:.1f} of {self.cluster.gpu.memory:g} GiB; {advise_on_memory(self)}"
        yield from [seen] if isinstance(seen, str) else seen.problems if seen else ()


def look_at_data(foreseen: RunEstimate, recipe: Recipe) -> DataPreview | str | None:
    """A preview of the data, the reason why it cannot be read, or None if the file does not exist."""
    paths = [path for path in map(on_disk, foreseen.config.data.training_files()) if path is not None]
    if not paths or not all(path.is_file() for path in paths):
        return None
    try:
        return preview_data(foreseen.config, recipe, foreseen.processor())
    except UserError as problem:
        return str(problem)
    except (OSError, ValueError) as problem:  # transformers raises these for a missing tokenizer
        return f"model.source: the tokenizer cannot be loaded: {first_line(problem)}"


def settle_plan(foreseen: RunEstimate, seen: DataPreview | str | None) -> tuple[RunEstimate, RunSizes | None]:
    """Return the estimate with the step size that the data give, and the sizes as training will choose them; without data, the largest step
    of `auto`, and None."""
    if not isinstance(seen, DataPreview):
        return foreseen, None
    config = foreseen.config
    count = partial(seen.count_steps, epochs=config.train.epochs)
    sizes = settle_sizes(config, seen.rows, round(seen.positions), foreseen.unit, count)
    work = replace(foreseen.work, global_batch_tokens=sizes.order.step_tokens)
    return replace(foreseen, config=sizes.config, work=work), sizes


def plan_run(foreseen: RunEstimate, cluster: Cluster) -> RunPlan:
    """Estimate every layout that the cluster and the config allow. Raises `UserError` if the config sets an impossible one."""
    parallel, work = foreseen.config.parallel, foreseen.work
    among = list(list_arrangements(cluster, work.refuses_tensor, parallel.offload))
    ranking = choose_layouts(work, cluster, among)
    if parallel.strategy == "auto" and parallel.tensor == 1:
        return RunPlan(foreseen, cluster, tuple(ranking), configured=False)
    strategy = "fsdp" if parallel.strategy == "auto" else parallel.strategy
    wanted = Arrangement(strategy, cluster.ranks, parallel.replicate, parallel.tensor, parallel.offload)
    check_layout(wanted, foreseen, cluster)
    chosen = estimate_layout(work, cluster, wanted, work.recomputing)
    return RunPlan(foreseen, cluster, (chosen, *(each for each in ranking if each.arrangement != wanted)), configured=True)


def check_layout(wanted: Arrangement, foreseen: RunEstimate, cluster: Cluster) -> None:
    """Raises `UserError` for a layout that training would refuse on this cluster."""
    copies, ranks = wanted.replicate, cluster.ranks
    if (wanted.strategy == "hsdp") != (copies > 1) or ranks % copies:
        raise UserError(
            f"parallel.strategy: {wanted.strategy} with parallel.replicate: {copies} on {ranks} ranks; "
            "hsdp needs a number above 1 that divides the ranks, and the other strategies need 1"
        )
    if wanted.tensor > 1 and (wanted.strategy != "fsdp" or cluster.gpus % wanted.tensor):
        raise UserError(
            f"parallel.tensor: {wanted.tensor} with {wanted.strategy} on {cluster.gpus} GPUs per machine; "
            "it needs fsdp, and must divide the GPUs of a machine"
        )
    if wanted.tensor > 1 and (refusal := foreseen.work.refuses_tensor(wanted.tensor)):
        raise UserError(refusal)


def error_messages(check: Callable[[], object]) -> Iterator[str]:
    try:
        check()
    except UserError as problem:
        yield str(problem)


def advise_on_memory(prospect: RunPlan) -> str:
    """Return what to change when the run does not fit into memory."""
    memory, config = prospect.best.memory, prospect.foreseen.config
    if memory.lasting + memory.passing > prospect.best.budget:
        adapters = "" if config.model.lora else " set --model.lora '{rank: 16}' (frozen weights take 2 bytes a parameter), or"
        return f"weights, gradients and optimizer state do not fit:{adapters} use more GPUs"
    return f"set --train.micro_tokens {prospect.largest // 256 * 256}" if prospect.largest else "use more GPUs"


def checkpoint_size(foreseen: RunEstimate) -> int:
    """Return the size of one checkpoint on disk, in bytes."""
    return disk_space.checkpoint_bytes(foreseen.outline.trained, foreseen.outline.state_bytes)
