"""Tests of `overtone.recipes.serving.prometheus_metrics`; `tests/recipes/speech/serving/test_metrics.py` reads a whole page line by
line."""

from __future__ import annotations

import pytest

from overtone.recipes.serving.continuous_batch_scheduler import DeadlineError, QueueFullError, ServerClosedError
from overtone.recipes.serving.prometheus_metrics import OUTCOMES, RequestMetrics, format_latency, format_load, name_outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (QueueFullError(), "queue_full"),
        (DeadlineError(), "deadline"),
        (ServerClosedError(), "shutting_down"),
        (MemoryError(), "failed"),
    ],
)
def test_every_error_has_an_outcome(error: Exception, outcome: str) -> None:
    assert name_outcome(error) == outcome and outcome in OUTCOMES


def test_the_buckets_of_a_histogram_are_cumulative() -> None:
    metrics = RequestMetrics()
    for seconds in (0.01, 0.05, 40.0):
        metrics.observe_first(seconds)
    lines = format_latency("wait_seconds", "A wait.", {"m": metrics})
    assert lines[2] == 'overtone_wait_seconds_bucket{model="m",le="0.05"} 2'
    assert lines[-3:] == [
        'overtone_wait_seconds_bucket{model="m",le="+Inf"} 3',
        'overtone_wait_seconds_sum{model="m"} 40.06',
        'overtone_wait_seconds_count{model="m"} 3',
    ]


def test_the_load_of_a_batch_has_three_families() -> None:
    metrics = RequestMetrics()
    metrics.load.generation_seconds, metrics.load.steps, metrics.load.occupied_slots = 1.5, 4, 10
    samples = [family[-1] for family in format_load("chat", {"m": metrics})]
    assert samples == [
        'overtone_chat_generation_seconds_total{model="m"} 1.5',
        'overtone_chat_batch_steps_total{model="m"} 4',
        'overtone_chat_batch_requests_total{model="m"} 10',
    ]
