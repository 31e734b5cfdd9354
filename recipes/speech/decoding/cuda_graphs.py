"""CUDA graphs of a frame: about a thousand small kernels launched as one.

A frame depends only on the operations that the samplers need (the plan of a batch) and on the number of cache slots in its attention
window, not on values. So there is one graph for each plan and window. It is captured once, at the second frame that needs it or before the
first request, and stays valid while the tensors of its batch keep their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache

import torch

from overtone.finetune.terminal import print_diagnostic


@cache
def anchor(device: torch.device, failures: int) -> torch.cuda.CUDAGraph:  # noqa: ARG001  # part of the cache's key
    """Return a graph that is never freed, so that its memory pool stays valid. `failures`: the captures that have failed before; each one
    begins another pool, since some versions of torch leave the pool of a failed capture in use.

    The graphs of all batches share this pool. They have one capture stream, and so one cuBLAS workspace. torch 2.13 frees that workspace
    with any graph of the stream (pytorch#193402), although the others still write to it; in a pool that stays alive, only intermediate
    results of another graph can take its place, and graphs are replayed one after another. A pool without any graph could not be used
    again either, if one of its blocks is still in use."""
    graph, buffer = torch.cuda.CUDAGraph(), torch.zeros(1, device=device)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        buffer.fill_(0)  # torch warns about an empty graph
    return graph


class FrameGraphs:
    """Owns the captured graphs of one batch; they refer to its tensors, and share the memory of their intermediate results with the graphs
    of all other batches. So graphs must not be replayed on two streams at once."""

    failures = 0
    """Captures that have failed in this process."""

    def __init__(self, device: torch.device) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        """None: the frame cannot be captured."""
        self._run_before = set[Hashable]()
        self._device = device

    @classmethod
    def open(cls, device: torch.device) -> FrameGraphs | None:
        """Return no graphs yet; None if this device has no graphs."""
        return cls(device) if device.type == "cuda" else None

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
                torch.cuda.graph(graph, pool=anchor(self._device, FrameGraphs.failures).pool(), capture_error_mode="thread_local"),
            ):
                frame()
        except RuntimeError as error:  # an operation that reads a value, or no memory for the graph
            FrameGraphs.failures += 1
            print_diagnostic(f"frames run without a CUDA graph, which is slower: {str(error).partition(chr(10))[0]}")
            return None
        return graph
