"""CUDA's graph API, imitated on a CPU: a capture records operations with their tensors, and a replay computes them on the same tensors.

As on a GPU, a capture changes nothing, refuses operations whose result the host would have to read, and a replay neither sees tensors that
were replaced after the capture nor runs any Python of the frame.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from functools import partialmethod
from typing import Any, NoReturn
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from overtone.recipes.speech.decoding.cuda_graphs import FrameGraphs, anchor

HOST_READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.masked_select.default}
"""Operations on values that the host reads: `item`, `bool`, and results of unknown size."""
COPIES_TO_HOST = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
"""Methods of a tensor that do the same, but are no operations on a CPU, or none in inference mode."""


HANDLES = itertools.count(1)
"""Handles of new memory pools."""


class RecordedGraph(TorchDispatchMode):
    """In place of `torch.cuda.CUDAGraph`."""

    captured = 0
    """Captures since the last `imitate_graphs`."""
    replayed = 0
    pools: dict[int, weakref.WeakSet[RecordedGraph]]
    """The graphs of each memory pool that are alive."""
    failed: set[int]
    """Pools in which a capture has failed: some versions of torch do not end the use of the pool then."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = 0
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self._before: dict[int, tuple[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        given = kwargs or {}
        if func in HOST_READS:
            refuse(func)
        if func._schema.is_mutable:
            for one in tree_leaves((args, given)):
                if isinstance(one, Tensor):
                    storage = one.untyped_storage()
                    self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        result = func(*args, **given)
        self._calls.append((func, args, given, result))
        return result

    def begin(self, pool: int) -> None:
        """Enter a pool, which must belong to a graph that is alive and to no capture in progress."""
        if pool in self.failed:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        if not self.pools.setdefault(pool, weakref.WeakSet([self])):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self.pools[pool].add(self)
        self._pool = pool

    def pool(self) -> int:
        """Handle of the pool in which the graph was captured."""
        return self._pool

    def end(self) -> None:
        """Undo what the recorded frame has changed."""
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()

    @torch.inference_mode()
    def replay(self) -> None:
        type(self).replayed += 1
        for func, args, kwargs, recorded in self._calls:
            found = func(*args, **kwargs)
            for old, new in zip(tree_leaves(recorded), tree_leaves(found), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextlib.contextmanager
def _capture(graph: RecordedGraph, pool: int | None = None, *, capture_error_mode: str) -> Iterator[None]:
    assert capture_error_mode == "thread_local"
    graph.begin(next(HANDLES) if pool is None else pool)
    RecordedGraph.captured += pool is not None
    refused = {name: partialmethod(lambda _, method, *__: refuse(method), name) for name in COPIES_TO_HOST}
    try:
        with graph, mock.patch.multiple(torch.Tensor, **refused):
            yield
    except BaseException:
        RecordedGraph.failed.add(graph.pool())
        raise
    finally:
        graph.end()


def refuse(what: object) -> NoReturn:
    """Raise the error of CUDA."""
    raise RuntimeError(f"{what} is not permitted when a stream is capturing")


def imitate_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches and sessions on this CPU capture their frames, as on a GPU, and count from 0."""
    anchor.cache_clear()
    monkeypatch.setattr(FrameGraphs, "open", classmethod(lambda cls, device: cls(device)))
    for name, stub in (
        ("CUDAGraph", RecordedGraph),
        ("graph", _capture),
        ("synchronize", lambda: None),
        ("current_stream", lambda: None),
        ("stream", lambda _: contextlib.nullcontext()),
    ):
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(RecordedGraph, "captured", 0)
    monkeypatch.setattr(RecordedGraph, "replayed", 0)
    monkeypatch.setattr(RecordedGraph, "pools", {}, raising=False)
    monkeypatch.setattr(RecordedGraph, "failed", set(), raising=False)
