"""Straggler report: how long each rank computes in a step, and how late it comes to the step, without the time that it waits for others.

A step takes as long on every rank, since they wait for each other. So two things are measured in which no rank waits: the forward passes of
blocks, whose collectives run before and after them, and the time of arrival at the step's first collective. (Under tensor parallelism a
block waits for the ranks that share its matrices, so a report names one of their group.)
"""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Callable
from statistics import median, median_low
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from overtone.finetune.distributed import activation_checkpointing
from overtone.finetune.distributed.process_group import World, gather_from_ranks

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
BEHIND = 0.2
"""Fraction by which a rank is slower than the median rank, or late by the length of the step, to be reported."""
WINDOW = 10
"""Number of steps that are compared: micro-batches differ in size."""


class RankTimes:
    """Measures this rank, and compares all of them."""

    def __init__(self, world: World, model: nn.Module, blocks: tuple[type[nn.Module], ...]) -> None:
        """`model`: with compiled and sharded blocks. Collective: call on every rank."""
        self._world = world
        self._hosts = [str(host) for host in gather_from_ranks(world, platform.node())]
        self._on_gpu, self._seconds = world.device.type == "cuda", 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._recent = deque[tuple[list[float], list[float], float]](maxlen=WINDOW)
        self._reported = set[tuple[str, int]]()
        self.computed: list[float] = []
        """Seconds in forward passes of blocks in the last step, by rank."""
        self.late: list[float] = []
        """Seconds by which each rank came to the last step later than the first one."""
        for module in activation_checkpointing.find_outermost_blocks(model, blocks):
            module.forward = self._time(module.forward)

    def _time(self, forward: Callable[P, ResultT]) -> Callable[P, ResultT]:
        """A block's forward, measured while training."""

        def timed(*given: P.args, **named: P.kwargs) -> ResultT:
            if not torch.is_grad_enabled():
                return forward(*given, **named)
            begun = time.perf_counter()
            if not self._on_gpu:
                result = forward(*given, **named)
                self._seconds += time.perf_counter() - begun
                return result
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            result = forward(*given, **named)
            last.record()
            self._events.append((first, last))
            return result

        return timed

    def take_own(self, waited: float) -> list[float]:
        """A row of zeros, but for this rank's seconds of computing since the last call, and `waited`, its seconds of waiting at the step's
        first collective. The sum of all ranks' rows is for `note_all`. Call it when the host has waited for the device."""
        seconds = self._seconds + sum(begun.elapsed_time(ended) for begun, ended in self._events) / 1000
        self._seconds = 0.0
        self._events.clear()
        row = [0.0] * (2 * self._world.size)
        row[self._world.rank], row[self._world.size + self._world.rank] = seconds, waited
        return row

    def note_all(self, summed: list[float], step_seconds: float) -> None:
        """Keep the times of a step, from the sum of `take_own` over the ranks. `step_seconds`: of the whole step."""
        size = self._world.size
        self.computed, waited = summed[:size], summed[size:]
        self.late = [max(waited) - each for each in waited]
        self._recent.append((self.computed, self.late, step_seconds))

    def report_stragglers(self) -> list[str]:
        """A line for each rank that has fallen behind over the last `WINDOW` steps; once, until it has caught up."""
        if len(self._recent) < WINDOW:
            return []
        behind = self._find_stragglers()
        lines = [line for key, line in behind.items() if key not in self._reported]
        self._reported = set(behind)
        return lines

    def _find_stragglers(self) -> dict[tuple[str, int], str]:
        """Return the lines to report, by kind and rank, from medians over the steps: the first step compiles, on some ranks longer."""
        computed, late, (step_seconds,) = (
            [median(each) for each in zip(*rows, strict=True)] for rows in zip(*((*r[:2], [r[2]]) for r in self._recent), strict=True)
        )
        usual, found = median_low(computed), dict[tuple[str, int], str]()
        for rank, host in enumerate(self._hosts):
            if computed[rank] > (1 + BEHIND) * usual:
                found["slow", rank] = (
                    f"rank {rank} on {host} computes {computed[rank] / usual - 1:.0%} slower than the median rank: {computed[rank]:.3g} s "
                    f"of a step in forward passes, against {usual:.3g} s; check its clock, its temperature, and what else runs there"
                )
            if late[rank] > BEHIND * step_seconds:
                found["late", rank] = (
                    f"rank {rank} on {host} begins each step {late[rank]:.3g} s after the first rank, {late[rank] / step_seconds:.0%} of "
                    "the step; check how fast its machine reads the data, and what else runs there"
                )
        return found
