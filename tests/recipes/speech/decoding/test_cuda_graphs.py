"""Graphs that are captured once and replayed, by an imitation of CUDA's API; the recipes' tests replay whole frames, and
tests/recipes/qwen3_tts/inference/test_graph_replay.py does on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from overtone.recipes.speech.decoding.cuda_graphs import FrameGraphs
from tests.recipes.speech.decoding.recorded_graphs import RecordedGraph, imitate_graphs

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    imitate_graphs(monkeypatch)


def test_a_frame_is_captured_once_for_each_key() -> None:
    graphs, total, calls = FrameGraphs(CPU), torch.zeros(1), []

    def frame() -> None:
        calls.append(1)
        total.add_(1)

    for key in ("a", "b", "a", "a", "b"):
        graphs.run(frame, key)
    assert total.item() == 5 and len(calls) == 4, "a capture does not change the result"
    assert (graphs.count, RecordedGraph.captured, RecordedGraph.replayed) == (2, 2, 3)
    graphs.forget()
    for _ in range(2):
        graphs.run(frame, "a")
    assert (total.item(), graphs.count, RecordedGraph.captured) == (7, 1, 3)


def capture(graphs: FrameGraphs, frame: Callable[[], object]) -> None:
    def run() -> None:
        frame()

    for _ in range(2):
        graphs.run(run, "a")


def test_the_graphs_of_all_batches_share_a_pool_that_outlives_them() -> None:
    """As each graph refers to the cuBLAS workspace of all."""
    total = torch.zeros(1)
    first, second = FrameGraphs(CPU), FrameGraphs(CPU)
    for graphs in (first, second):
        capture(graphs, lambda: total.add_(1))
    [(pool, alive)] = RecordedGraph.pools.items()
    assert len(alive) == 3
    for graphs in (first, second):
        graphs.forget()
    assert len(alive) == 1, "the pool has lost its last graph"
    capture(first, lambda: total.add_(1))
    assert first.count == 1 and total.item() == 6 and [*RecordedGraph.pools] == [pool]


def test_a_failed_capture_leaves_the_other_batches_their_graphs() -> None:
    total = torch.zeros(1)
    graphs, failing, later = (FrameGraphs(CPU) for _ in range(3))
    capture(graphs, lambda: total.add_(1))
    capture(failing, total.item)
    capture(later, lambda: total.add_(1))
    assert [one.count for one in (graphs, failing, later)] == [1, 0, 1]
    graphs.forget()
    assert all(RecordedGraph.pools.values()), "the workspace may be in the pool of before the failure"


def test_a_single_frame_is_not_captured() -> None:
    graphs = FrameGraphs(CPU)
    graphs.run(lambda: None, "a")
    assert (graphs.count, RecordedGraph.captured) == (0, 0)


@pytest.mark.parametrize("read", [lambda total: total.item(), lambda total: total.tolist(), lambda total: bool(total.any())])
def test_a_frame_that_reads_a_value_runs_without_a_graph(
    read: Callable[[torch.Tensor], object], capsys: pytest.CaptureFixture[str]
) -> None:
    graphs, total = FrameGraphs(CPU), torch.zeros(1)

    def frame() -> None:
        total.add_(1)
        read(total)

    for _ in range(3):
        graphs.run(frame, "a")
    assert total.item() == 3 and graphs.count == 0 and RecordedGraph.captured == 1
    assert capsys.readouterr().err.count("frames run without a CUDA graph, which is slower: ") == 1


def test_a_replay_does_not_see_a_tensor_that_was_replaced() -> None:
    """The imitation would otherwise accept a batch whose tensors move."""
    graphs, held = FrameGraphs(CPU), [torch.zeros(1)]
    for _ in range(2):
        graphs.run(lambda: held[0].add_(1), "a")
    held[0] = torch.zeros(1)
    graphs.run(lambda: held[0].add_(1), "a")
    assert held[0].item() == 0
