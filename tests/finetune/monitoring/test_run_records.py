"""The files in a run's folder as they may be found: missing, torn, or written by somebody else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overtone.finetune.monitoring.run_records import find_best_evaluation, iterate_events, read_history, read_json, read_log


def write_log(path: Path, *events: object) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


@pytest.mark.parametrize("content", [None, "[", "[1]", "\ud800", " " * 2**27])
def test_a_record_that_cannot_be_read_is_empty(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "exit.json").write_text(content, errors="surrogatepass")
    assert read_json(tmp_path / "exit.json") == {}


def test_of_a_step_that_was_evaluated_twice_the_last_loss_counts(tmp_path: Path) -> None:
    losses = [(2, 3.0), (4, 2.0), (6, float("nan")), (4, 2.5), (8, 2.6), (10, 2.5)]
    log = write_log(tmp_path / "log.jsonl", *({"event": "evaluation", "step": step, "val/loss": loss} for step, loss in losses))
    assert find_best_evaluation(iterate_events(log)) == find_best_evaluation(read_log(log)) == (2.5, 4)
    assert find_best_evaluation([{"event": "evaluation", "step": 1}, {"event": "step", "step": 1, "val/loss": 1.0}]) is None


def test_lines_beyond_the_limit_are_passed_over(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", *({"event": "step", "step": step, "text": "x" * step} for step in (1, 1000, 2)))
    assert [event["step"] for event in iterate_events(log, 100)] == [1, 2]
    assert [event["step"] for event in iterate_events(log)] == [1, 1000, 2]


def test_the_history_is_that_of_the_launch_that_counts(tmp_path: Path) -> None:
    """A fresh start in the same folder drops what was there, and a resume what it repeats; lines of others are passed over."""
    log = write_log(
        tmp_path / "log.jsonl",
        {"event": "started", "step": 0},
        *({"event": "step", "step": step, "loss": 9.0} for step in (1, 2, 3)),
        {"event": "evaluation", "step": 3, "val/loss": 9.0},
        {"event": "started", "step": 0},
        {"event": "evaluation", "step": 0, "val/loss": 5.0, "val/a/loss": 4.0, "time": 3.0},
        *({"event": "step", "step": step, "loss": float(step)} for step in (1, 2, 3)),
        {"event": "evaluation", "step": 2, "val/loss": 2.0},
        {"event": "evaluation", "step": 3, "val/loss": 3.0},
        {"event": "resumed", "step": 2},
        {"event": "step", "step": 3, "loss": 0.5},
        {"event": "step", "step": 4, "loss": "low"},
    )
    history = read_history(log)
    assert history.losses == {1: 1.0, 2: 2.0, 3: 0.5}
    assert history.evaluations == {0: {"loss": 5.0, "a/loss": 4.0}, 2: {"loss": 2.0}}
