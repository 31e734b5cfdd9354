"""The report that `overtone plan` prints: a run's size, time, memory, and strategy, line by line."""

from __future__ import annotations

from collections.abc import Iterator

from overtone.finetune.checkpointing.retention import describe_keep
from overtone.finetune.data.run_sizes import RunSizes
from overtone.finetune.errors import format_count
from overtone.finetune.hardware.gpu_specs import EFFICIENCY
from overtone.finetune.monitoring.run_logger import format_duration
from overtone.finetune.planning.data_preview import DataPreview
from overtone.finetune.planning.launch_file import distributed_type
from overtone.finetune.planning.memory import GIB, Memory
from overtone.finetune.planning.parallelism_planner import CLOSE, SEARCHED, explain_rejection
from overtone.finetune.planning.run_plan import RunPlan, checkpoint_size
from overtone.finetune.storage.text_lines import split_lines

BAR = 30
"""Characters of the largest bar."""
TERMS = {
    "frozen": "frozen weights",
    "rollouts": "rollouts",
    "masters": "masters (fp32)",
    "gradients": "gradients (fp32)",
    "optimizer": "optimizer",
    "gathered": "gathered weights",
    "unreduced": "full gradients",
    "reducing": "reduction buffer",
    "activations": "activations",
    "loss": "loss",
    "working": "backward pass",
    "overhead": "overhead (est.)",
}


def format_plan(
    prospect: RunPlan, command: str, seen: DataPreview | str | None, sizes: RunSizes | None, problems: list[str]
) -> Iterator[str]:
    """Yield the plan, line by line. `command`: the one that trains like this. `sizes`: those that follow from the data, if there are
    any."""
    yield from describe_run(prospect)
    if isinstance(seen, DataPreview) and sizes is not None:
        if not prospect.foreseen.config.train.steps:
            yield describe_data(prospect, seen, sizes.total)
        yield from sizes.remarks
        yield from (f"data.mix: {line}" for line in seen.shares)
    elif not prospect.foreseen.config.data.training_files():
        yield "no data yet: with --data.train FILE, the plan has the number of steps, and the step size that auto chooses"
    yield ""
    yield from describe_memory(prospect)
    yield ""
    yield from describe_strategy(prospect, command)
    yield ""
    yield from format_problems(problems)


def format_problems(problems: list[str]) -> Iterator[str]:
    """Yield what would stop the run, or that nothing was found."""
    yield f"problems to fix before training: {len(problems)}" if problems else "no problems found"
    yield from (f"  {line}" for problem in problems for line in split_lines(problem))


def describe_run(prospect: RunPlan) -> Iterator[str]:
    """Yield parameters, steps, checkpoints, time."""
    foreseen, best = prospect.foreseen, prospect.best
    of, work, train = foreseen.outline, foreseen.work, foreseen.config.train
    size = checkpoint_size(foreseen)
    yield f"{of.total:,} parameters, {of.trained:,} trained"
    most = min(work.micro_tokens, work.global_batch_tokens)
    yield f"a step: {work.global_batch_tokens:,} {foreseen.unit}, {format_count(work.micro_batches, 'micro-batch')} of up to {most:,}"
    yield (
        f"a checkpoint: {size / 1e9:.2f} GB on disk; {describe_keep(foreseen.config.checkpoint.keep)} are kept, and the oldest is removed "
        "only after the next one is written"
    )
    if foreseen.config.checkpoint.asynchronous:
        yield f"host memory for asynchronous saves: {size / prospect.cluster.nodes / 1e9:.2f} GB on each machine"
    yield (
        f"estimated time: {best.seconds.total:.2f} s a step, {best.tokens_per_second:,.0f} {foreseen.unit} a second, if a GPU reaches "
        f"{EFFICIENCY:.0%} of its {prospect.cluster.gpu.speed:g} dense bf16 TFLOPS and there is no padding"
    )
    if train.steps:
        yield f"{format_count(train.steps, 'step')}: {format_duration(train.steps * best.seconds.total)}"
    yield from foreseen.remarks


def describe_data(prospect: RunPlan, found: DataPreview, steps: int) -> str:
    """Return steps and time; extrapolated unless all rows were read."""
    train, about = prospect.foreseen.config.train, "" if found.looked_at == found.rows else "about "
    return (
        f"{about}{format_count(steps, 'step')}, {format_duration(steps * prospect.best.seconds.total)}: "
        f"{format_count(train.epochs, 'epoch')} of {about}{found.positions:,.0f} {prospect.foreseen.unit}, "
        f"from {found.looked_at} of {format_count(found.rows, 'row')}"
    )


def describe_memory(prospect: RunPlan) -> Iterator[str]:
    """Yield the memory of one GPU, term by term, with bars."""
    best = prospect.best
    where = f"{best.arrangement} on {prospect.cluster}"
    yield f"peak memory of a GPU with {where}, activation checkpointing {best.recomputing}, in GiB:"
    yield from format_bars(best.memory)
    state = "fits" if best.fits else "does not fit"
    yield f"  {'total':<17}{best.memory.total / GIB:8.2f}  of {prospect.cluster.gpu.memory:g}: {state}"
    most, searched = prospect.largest, SEARCHED * prospect.foreseen.config.train.micro_tokens
    more = f" or more; the search ends at {SEARCHED} times the configured one" if most >= (1 - CLOSE) * searched else ""
    yield f"the largest micro-batch that fits: --train.micro_tokens {most}{more}" if most else "no micro-batch fits beside the weights"


def format_bars(memory: Memory) -> Iterator[str]:
    largest = max(memory.terms.values())
    for name, size in memory.terms.items():
        if size:
            yield f"  {TERMS[name]:<17}{size / GIB:8.2f}  {'█' * max(1, round(BAR * size / largest))}"


def describe_strategy(prospect: RunPlan, command: str) -> Iterator[str]:
    """Yield the chosen strategy, the `command` that trains with it, and the reasons against the others."""
    best, *others = prospect.verdicts
    suffix = ", as configured" if prospect.configured else ""
    yield f"strategy: {best.arrangement}{suffix}; distributed_type: {distributed_type(best.arrangement)}; --write FILE writes a launch file"
    yield f"  {command}"
    if best.recomputing != prospect.foreseen.work.recomputing:
        yield f"  with activation checkpointing {best.recomputing}: nothing fits with {prospect.foreseen.work.recomputing}"
    for verdict in others:
        yield f"  not {verdict.arrangement}: {explain_rejection(verdict, best)}"
