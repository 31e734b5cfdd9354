"""CUDA graphs of a frame: about a thousand small kernels launched as one.

A frame depends only on the number of cache slots in its attention window, not on values. So there is one graph per window size, in steps of
`STEP` slots, captured when the speech first needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

STEP = 256
"""Slots by which a window grows: few graphs, and little attention to empty slots."""


def window_size(needed: int, slots: int) -> int:
    """The window size for `needed` slots of a cache with `slots` slots."""
    return min(slots, -(-needed // STEP) * STEP)


class FrameGraphs:
    """Owns the captured graphs of one batch; they refer to its tensors."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._graphs: dict[int, Any] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, frame: Callable[[int], None], needed: int) -> None:
        """Run one frame with a window of at least `needed` slots. Pass the same `frame` each time; it is not stored here, because it would
        then keep itself alive."""
        size = window_size(needed, self._slots)
        if size in self._graphs:
            self._graphs[size].replay()
        else:
            frame(size)  # a normal frame; it also makes the libraries allocate memory that a capture must not allocate
            self._graphs[size] = self._capture(frame, size)

    def _capture(self, frame: Callable[[int], None], size: int) -> Any:
        """Capture records the frame without running it, so the state of the speech does not change."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool):
            frame(size)
        return graph
