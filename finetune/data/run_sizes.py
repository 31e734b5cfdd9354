"""Sizes of a run that follow from its data: positions per optimizer step, and steps between two evaluations and two checkpoints.

A few hundred chats at the step size of a large run are three updates, after which a model is as it was. So `auto` aims at a number of
updates, and the step size follows from it. `describe_few_updates` warns of a run that has few all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from overtone.finetune.config import AUTO, Config, Train, require_number
from overtone.finetune.data.batching import Order
from overtone.finetune.errors import format_count

UPDATES = 100
"""Optimizer steps that `train.global_batch_tokens: auto` aims at, over all epochs."""
FEW_UPDATES = 50
"""Optimizer steps below which a run is warned of."""
SMALLEST_STEP = 4
"""Samples of mean length in the smallest step that `auto` chooses: the gradient of a single sample is mostly noise."""
EVALUATIONS = 10
"""Evaluations of a run under `eval.every: auto`."""
SAVES = 5
"""Checkpoints of a run under `checkpoint.every: auto`, without adapters: one is 12 bytes per trained parameter."""
LONGEST_INTERVAL = 200
"""Maximum steps between two evaluations or checkpoints under `auto`: the work that a failing machine may cost."""


@dataclass(frozen=True)
class RunSizes:
    """The sizes of a run as numbers."""

    config: Config
    """The config, in which `eval.every` and `checkpoint.every` are numbers. `train.global_batch_tokens` stays as it was set."""
    order: Order
    total: int
    """Optimizer steps."""
    remarks: tuple[str, ...]
    """One line with the numbers that `auto` stands for, and a warning if the updates are few."""


def settle_sizes(
    config: Config, rows: int, positions: int, unit: str, count: Callable[[Order], int], started: Order | None = None
) -> RunSizes:
    """Return the sizes of a run on these data. `positions`: of the `rows` of one epoch. `count`: the steps of all epochs in an order.

    `started`: the order of the checkpoint that the run resumes from, which `auto` keeps: other epochs would give another one.
    """
    train = config.train
    order = choose_order(Order.of(config.run.seed, config.data, train), train, rows, positions, started)
    total = train.steps or count(order)
    every = config.eval.every
    evaluate = min(-(-total // EVALUATIONS), LONGEST_INTERVAL) if every == AUTO else require_number(every)
    validates = config.data.val is not None
    save = choose_save_interval(config.checkpoint.every, total, config.model.lora is not None, evaluate if validates else 1)
    chosen = [
        describe_step_size(train, order, rows, positions, unit, resumed=started is not None),
        f"eval.every {evaluate}" if config.eval.every == AUTO and validates else "",
        f"checkpoint.every {save}" if config.checkpoint.every == AUTO else "",
    ]
    sizes = ", ".join(filter(None, chosen))
    warnings = (describe_larger_steps(train, unit), describe_few_updates(train, order, total, rows, positions))
    remarks = (f"auto: {sizes}" if sizes else "", *warnings)
    intervals = {
        "eval": config.eval.model_copy(update={"every": evaluate}),
        "checkpoint": config.checkpoint.model_copy(update={"every": save}),
    }
    return RunSizes(config.model_copy(update=intervals), order, total, tuple(filter(None, remarks)))


def choose_order(given: Order, train: Train, rows: int, positions: int, started: Order | None = None) -> Order:
    """Return the order of samples: as `given` by the config, with the step size that `auto` stands for. The other arguments are those of
    `settle_sizes`.

    A step has k micro-batches of a k-th of its positions.
    """
    if train.global_batch_tokens != AUTO:
        return given
    if started is not None and started.micro_tokens <= train.micro_tokens:
        return replace(given, micro_tokens=started.micro_tokens, global_batch_tokens=started.global_batch_tokens)
    wanted = max(positions * train.epochs // UPDATES, smallest_step(rows, positions))
    tokens = min(wanted, train.largest_batch_tokens)
    micros = -(-tokens // train.micro_tokens)
    micro = -(-tokens // micros)
    return replace(given, micro_tokens=micro, global_batch_tokens=micro * micros)


def smallest_step(rows: int, positions: int) -> int:
    """Return the number of positions of the smallest step that `auto` chooses."""
    return max(1, SMALLEST_STEP * positions // max(rows, 1))


def choose_save_interval(every: int | str, total: int, has_adapters: bool, aligned: int) -> int:
    """`checkpoint.every` as a number. `aligned`: a step count of which `auto` chooses a multiple, since a checkpoint without an evaluation
    is never the best."""
    if every != AUTO:
        return require_number(every)
    wanted = -(-total // (EVALUATIONS if has_adapters else SAVES))
    return aligned * max(1, min(-(-wanted // aligned), LONGEST_INTERVAL // aligned))


def describe_step_size(train: Train, order: Order, rows: int, positions: int, unit: str, resumed: bool) -> str:
    """Return the step size that `auto` stands for, and why; empty if it is set."""
    if train.global_batch_tokens != AUTO:
        return ""
    why = (
        f"{format_count(rows, 'row')} with {positions:,} {unit} × {format_count(train.epochs, 'epoch')} / {UPDATES} updates; at "
        f"least {SMALLEST_STEP} rows, at most train.largest_batch_tokens: {train.largest_batch_tokens:,}"
    )
    return f"train.global_batch_tokens {order.step_tokens:,} ({'as when the run started' if resumed else why})"


def describe_larger_steps(train: Train, unit: str) -> str:
    """Return a warning if a micro-batch is more than 1.5 times the set step size, so that steps are larger; empty otherwise."""
    wanted = train.global_batch_tokens
    if wanted == AUTO or 3 * require_number(wanted) >= 2 * train.micro_tokens:
        return ""
    return (
        f"warning: a step is at least one micro-batch, of up to {train.micro_tokens:,} {unit}, although train.global_batch_tokens is "
        f"{wanted:,}: for smaller steps set train.micro_tokens below it"
    )


def describe_few_updates(train: Train, order: Order, total: int, rows: int, positions: int) -> str:
    """Return a warning with the two keys to change if a run has few updates; empty if not, or if their number was set."""
    if train.steps is not None or total >= FEW_UPDATES:
        return ""
    epochs = -(-train.epochs * FEW_UPDATES // total)
    smallest = smallest_step(rows, positions)
    other = f"--train.lr (now {train.lr:g}) to a higher one"
    if train.global_batch_tokens != AUTO and order.step_tokens > 1.5 * smallest:
        other = f"--train.global_batch_tokens (now {order.step_tokens:,}) to auto"
    return (
        f"warning: {format_count(total, 'update')} in all, and a model changes little in fewer than {FEW_UPDATES}: set --train.epochs (now "
        f"{train.epochs}) to {epochs}, or {other}"
    )
