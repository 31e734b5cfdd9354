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
    """With numbers as `eval.every` and `checkpoint.every`. `train.global_batch_tokens` stays as it was set."""
    order: Order
    total: int
    """Optimizer steps."""
    remarks: tuple[str, ...]
    """One line with the numbers that `auto` stands for, and a warning if the updates are few."""


def settle_sizes(
    config: Config, rows: int, positions: int, unit: str, count: Callable[[Order], int], started: Order | None = None
) -> RunSizes:
    """The sizes of a run on these data. `positions`: of the `rows` of one epoch. `count`: the steps of all epochs in an order.

    `started`: the order of the checkpoint that the run resumes from, which `auto` keeps: other epochs would give another one.
    """
    order = choose_order(config, rows, positions, started)
    total = config.train.steps or count(order)
    settled = settle_intervals(config, total)
    remarks = (
        describe_sizes(config, settled, order, rows, positions, unit, resumed=started is not None),
        describe_few_updates(config.train, order, total, rows, positions),
    )
    return RunSizes(settled, order, total, tuple(filter(None, remarks)))


def choose_order(config: Config, rows: int, positions: int, started: Order | None = None) -> Order:
    """The order of samples, with the step size that `auto` stands for. Arguments as of `settle_sizes`.

    A step ends with the micro-batch that reaches `Order.global_batch_tokens`, and micro-batches are not quite full. So k micro-batches of a
    k-th of the step are requested, and the step ends between the last two: k - ½ of them are enough.
    """
    train, order = config.train, Order.of(config)
    if train.global_batch_tokens != AUTO:
        return order
    if started is not None and started.micro_tokens <= train.micro_tokens:
        return replace(order, micro_tokens=started.micro_tokens, global_batch_tokens=started.global_batch_tokens)
    wanted = max(positions * train.epochs // UPDATES, smallest_step(rows, positions))
    tokens = min(wanted, train.largest_batch_tokens)
    micros = -(-tokens // train.micro_tokens)
    micro = -(-tokens // micros)
    return replace(order, micro_tokens=micro, global_batch_tokens=max(1, round(micro * (micros - 0.5))))


def smallest_step(rows: int, positions: int) -> int:
    """Positions of the smallest step that `auto` chooses."""
    return max(1, SMALLEST_STEP * positions // max(rows, 1))


def settle_intervals(config: Config, total: int) -> Config:
    """The config with numbers as `eval.every` and `checkpoint.every`. `total`: optimizer steps of the run."""
    evaluate, save = config.eval.every, config.checkpoint.every
    if evaluate == AUTO:
        evaluate = min(-(-total // EVALUATIONS), LONGEST_INTERVAL)
    if save == AUTO:
        wanted = -(-total // (SAVES if config.model.lora is None else EVALUATIONS))
        aligned = require_number(evaluate) if config.data.val is not None else 1  # a checkpoint without an evaluation is never the best
        save = aligned * max(1, min(-(-wanted // aligned), LONGEST_INTERVAL // aligned))
    return config.model_copy(
        update={
            "eval": config.eval.model_copy(update={"every": evaluate}),
            "checkpoint": config.checkpoint.model_copy(update={"every": save}),
        }
    )


def describe_sizes(given: Config, settled: Config, order: Order, rows: int, positions: int, unit: str, resumed: bool = False) -> str:
    """One line: the sizes that `auto` stands for, and why; empty if all are set. `given`: the config before it was settled."""
    parts = []
    if given.train.global_batch_tokens == AUTO:
        why = (
            f"{format_count(rows, 'row')} with {positions:,} {unit} × {format_count(given.train.epochs, 'epoch')} / {UPDATES} updates; at "
            f"least {SMALLEST_STEP} rows, at most train.largest_batch_tokens: {given.train.largest_batch_tokens:,}"
        )
        parts.append(f"train.global_batch_tokens {order.step_tokens:,} ({'as when the run started' if resumed else why})")
    for key, was, now in (
        ("eval.every", given.eval.every, settled.eval.every),
        ("checkpoint.every", given.checkpoint.every, settled.checkpoint.every),
    ):
        if was == AUTO and (key != "eval.every" or given.data.val is not None):
            parts.append(f"{key} {now}")
    return f"auto: {', '.join(parts)}" if parts else ""


def describe_few_updates(train: Train, order: Order, total: int, rows: int, positions: int) -> str:
    """A warning with the two keys to change if a run has few updates; empty if not, or if their number was set."""
    if train.steps is not None or total >= FEW_UPDATES:
        return ""
    epochs = -(-train.epochs * FEW_UPDATES // total)
    smallest = smallest_step(rows, positions)
    other = f"--train.lr (now {train.lr:g}) to a higher one"
    if order.step_tokens > 1.5 * smallest:
        other = f"--train.global_batch_tokens (now {order.step_tokens:,}) to {smallest:,} or auto"
    return (
        f"warning: {format_count(total, 'update')} in all, and a model changes little in fewer than {FEW_UPDATES}: set --train.epochs (now "
        f"{train.epochs}) to {epochs}, or {other}"
    )
