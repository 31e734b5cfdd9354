"""Durations that can be compared on a machine that others use too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

WARM_UP = 3
"""Calls before the first that counts: allocators and caches fill."""


def medians(variants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each variant, as `time_in_turns` takes them."""
    return {name: median(taken) for name, taken in time_in_turns(variants, rounds, WARM_UP).items()}


def time_in_turns(
    variants: Mapping[str, Callable[[], object]], rounds: int, warm_up: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds of each round of each variant. They take turns, A B B A A B …, so that a busy minute slows all of them equally.

    Unless another clock is given, seconds of this process on a processor: what others take of the machine in between is not counted.
    """
    for act in [*variants.values()] * warm_up:
        act()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        for name in order:
            seconds[name].append(time_once(variants[name], clock))
        order.reverse()
    return seconds


def time_once(act: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of one call, by this clock."""
    began = clock()
    act()
    return clock() - began


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Median of the rounds' own ratios, and in brackets the smallest and the largest of them."""
    each = [one / other for one, other in zip(above, below, strict=True)]
    return f"{median(each):.2f} ({min(each):.2f}–{max(each):.2f})"
