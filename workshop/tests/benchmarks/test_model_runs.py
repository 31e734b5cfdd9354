"""The column "run on" of docs/models.md counts only what a test runs or a record has."""

from __future__ import annotations

import pytest

from workshop.benchmarks import _model_runs
from workshop.benchmarks._model_runs import (
    OTHER_RUNS,
    SHAPE,
    TINY,
    TINY_RUNS,
    WEIGHTS,
    Evidence,
    GpuRecord,
    RanTest,
    SweepRecord,
    find_runs,
)
from workshop.benchmarks._released import released_models


def test_each_piece_of_evidence_exists_and_belongs_to_a_row() -> None:
    assert TINY_RUNS.keys() == {recipe for recipe, _ in released_models()} - {"llm_sft"}
    assert OTHER_RUNS.keys() <= {model.name for _, model in released_models()}
    for evidence in [*TINY_RUNS.values(), *(each for runs in OTHER_RUNS.values() for each in runs.values())]:
        assert evidence.exists(), evidence


@pytest.mark.parametrize(
    "evidence",
    [
        RanTest("tests/real/test_chat_training.py", "test_another"),
        RanTest("tests/real/test_another.py", "test_a_method_learns_the_task_and_forgets_a_bounded_part"),
        GpuRecord("smoke", "serve, one request"),
        GpuRecord("smoke", "another"),
        SweepRecord("another"),
    ],
)
def test_what_is_not_there_or_failed_does_not_count(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not evidence.exists()
    monkeypatch.setattr(_model_runs, "OTHER_RUNS", {"a/b": {WEIGHTS: evidence}})
    assert find_runs("csm", "a/b", None).keys() == {TINY}


def test_the_kinds_are_in_order() -> None:
    assert list(find_runs("llm_sft", "Qwen/Qwen3-1.7B", "qwen3")) == [TINY, SHAPE]
    assert list(find_runs("llm_sft", "HuggingFaceTB/SmolLM2-135M-Instruct", "llama")) == [TINY, WEIGHTS]
    assert not find_runs("llm_sft", "a/b", "unknown")
