"""Durations that can be compared on a machine that others use too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

WARM_UP = 3
"""Calls before the first that counts: allocators and caches fill."""


def medians(variants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each variant. They take turns, A B B A A B …, so that a busy minute falls on all of them alike.

    Seconds of this process on a processor: what others take of the machine in between is not counted.
    """
    for act in [*variants.values()] * WARM_UP:
        act()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    for _ in range(rounds):
        for name in order:
            began = time.process_time()
            variants[name]()
            seconds[name].append(time.process_time() - began)
        order.reverse()
    return {name: median(taken) for name, taken in seconds.items()}
