"""Load balance over ranks: the fraction of idle turns, in which a rank computes a filler, and advice on settings that reduce it.

Micro-batches do not depend on the number of ranks (finetune/data/batching.py), so no size is adjusted automatically.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from overtone.finetune.data.batching import Order, Place, Step, steps
from overtone.finetune.data.cached_samples import Ids
from overtone.finetune.data.mixture import MixedLengths

STEPS = 8
"""Number of steps, from the start of the data, that are examined. This takes milliseconds for any number of rows."""
TOLERATED = 0.25
"""Fraction of turns without a micro-batch up to which no warning is given."""


def idle_share(todo: Sequence[Step], ranks: int) -> float:
    """Return the fraction of fillers among the turns of `ranks` ranks in these steps."""
    turns = sum(-(-len(step.micros) // ranks) * ranks for step in todo)
    return 1 - sum(len(step.micros) for step in todo) / turns


def suggest_sizes(order: Order, lengths: Ids | MixedLengths, ranks: int) -> str | None:
    """Return a warning with better settings if more than `TOLERATED` of the turns would be fillers; None if not, or if no better ones are
    found.

    Sizes are tested on the data: micro-batches are not quite full, so `ranks` times `micro_tokens` can need one micro-batch too many.
    """
    first = _take_first_steps(order, lengths)
    idle = idle_share(first, ranks)
    if idle <= TOLERATED:
        return None
    tokens, count = sum(step.tokens for step in first), sum(len(step.micros) for step in first)
    rounds = max(1, round(count / len(first) / ranks))
    larger = [replace(order, global_batch_tokens=int(tokens / count * (rounds * ranks - 0.5)) + order.micro_tokens // 2)]
    # Small micro-batches are less full than large ones; how much depends on the data.
    smaller = [replace(order, micro_tokens=int(grown * order.global_batch_tokens / ranks)) for grown in (1.0, 1.1, 1.2, 1.3, 1.4)]
    better = []
    for key, tried in (("global_batch_tokens", larger), ("micro_tokens", [each for each in smaller if each.micro_tokens >= lengths.max()])):
        shares = {getattr(each, key): idle_share(_take_first_steps(each, lengths), ranks) for each in tried}
        best = min(shares, key=lambda value: shares[value], default=None)
        if best is not None and shares[best] <= TOLERATED:
            better.append(f"train.{key}: {best} leaves {shares[best]:.0%}")
    if not better:
        return None
    return (
        f"warning: a step has about {count / len(first):.0f} micro-batches for {ranks} ranks, so {idle:.0%} of their turns are fillers; "
        f"in a new run {', or '.join(better)}"
    )


def _take_first_steps(order: Order, lengths: Ids | MixedLengths) -> list[Step]:
    return list(islice(steps(order, lengths, Place(), epochs=1), STEPS))
