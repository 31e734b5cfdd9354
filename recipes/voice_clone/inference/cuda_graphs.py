"""CUDA graphs of a frame: some thousand small kernels that are launched as one.

A frame does not depend on values, only on how many cache slots it looks at. So there is one graph for each size of the window, in steps of
`STEP` slots, captured when the speech first reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

STEP = 256
"""Slots by which a window grows: few graphs, and little attention to slots that are still empty."""


def window_size(needed: int, slots: int) -> int:
    """The window for `needed` slots of a cache with `slots`."""
    return min(slots, -(-needed // STEP) * STEP)


class FrameGraphs:
    """Owns the captured graphs of one batch, whose tensors they are bound to."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._graphs: dict[int, Any] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, frame: Callable[[int], None], needed: int) -> None:
        """One frame, looking at no fewer than the first `needed` slots. The same `frame` each time: kept here, it would keep itself."""
        size = window_size(needed, self._slots)
        if size in self._graphs:
            self._graphs[size].replay()
        else:
            frame(size)  # a frame as any other; it also makes the libraries allocate what a capture may not
            self._graphs[size] = self._captured(frame, size)

    def _captured(self, frame: Callable[[int], None], size: int) -> Any:
        """Capturing records the frame without running it, so that the speech stands where it stood."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool):
            frame(size)
        return graph
