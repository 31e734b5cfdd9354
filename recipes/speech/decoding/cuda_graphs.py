"""CUDA graphs of a frame: about a thousand small kernels launched as one.

A frame depends only on the operations that the samplers need (the plan of a batch) and on the number of cache slots in its attention
window, not on values. So there is one graph for each plan and window. It is captured once, at the second frame that needs it or before the
first request, and stays valid while the tensors of its batch keep their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from overtone.finetune.terminal import print_diagnostic

STEP = 256
"""Slots by which a window grows: few graphs, and little attention to empty slots."""


def window_size(needed: int, slots: int) -> int:
    """The window size for `needed` slots of a cache with `slots` slots."""
    return min(slots, -(-needed // STEP) * STEP)


class FrameGraphs:
    """Owns the captured graphs of one batch; they refer to its tensors, and share the memory of their intermediate results."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        """None: the frame cannot be captured."""
        self._run_before = set[Hashable]()
        self._pool = torch.cuda.graph_pool_handle()

    @classmethod
    def open(cls, device: torch.device) -> FrameGraphs | None:
        """Return no graphs yet; None if this device has no graphs."""
        return cls() if device.type == "cuda" else None

    @property
    def count(self) -> int:
        """The number of captured graphs."""
        return sum(graph is not None for graph in self._graphs.values())

    def run(self, frame: Callable[[], None], key: Hashable) -> None:
        """Run one frame. `key`: what determines its operations and its tensors. `frame` is not stored here, because it would then keep
        itself alive.

        The first frame of a key runs normally, which also makes the libraries allocate memory that a capture must not allocate; the second
        one is captured."""
        if key in self._run_before and key not in self._graphs:
            self._graphs[key] = self._capture(frame)
        self._run_before.add(key)
        graph = self._graphs.get(key)
        if graph is None:
            frame()
        else:
            graph.replay()

    def forget(self) -> None:
        """Drop all graphs, because the tensors that they refer to are replaced."""
        self._graphs.clear()
        self._run_before.clear()

    def _capture(self, frame: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Capture records the frame without running it, so the state of the speech does not change, even if the capture fails."""
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            # The outer context restores the stream, which that of a failed capture leaves as the current one. Another thread may allocate
            # memory in the meantime, as the codec does: hence `thread_local`.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                frame()
        except RuntimeError as error:  # an operation that reads a value, or no memory for the graph
            print_diagnostic(f"frames run without a CUDA graph, which is slower: {str(error).partition(chr(10))[0]}")
            return None
        return graph
