"""The metric of a study: parsed, reported, summarized, and the order of the trials."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.tuning.study_record import TrialRecord
from overtone.finetune.tuning.trial_metric import (
    AVERAGED,
    MetricReader,
    TrialCurve,
    TrialMetric,
    explain_missing_metric,
    parse_metric,
    rank_trials,
    read_curve,
    summarize_curve,
)


def test_a_metric_has_a_name_and_a_direction() -> None:
    assert parse_metric("val/loss") == TrialMetric("val/loss", False) == parse_metric("val/loss min")
    assert parse_metric("val/accuracy max") == TrialMetric("val/accuracy", True)
    assert parse_metric("val/accuracy max").best_by == "accuracy max" and parse_metric("loss").best_by is None


@pytest.mark.parametrize("text", ["", " min", "loss low", "loss min max", "step", "time max"])
def test_what_is_no_metric_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected the name of a metric"):
        parse_metric(text)


def test_evaluations_are_reported_as_they_are() -> None:
    reader = MetricReader(parse_metric("val/loss"), 10)
    assert reader.read("evaluation", 7, {"val/loss": 2.5}) == 2.5
    assert reader.read("step", 10, {"loss": 3.0}) is None and reader.read("evaluation", 20, {"val/loss": math.nan}) is None


def test_a_metric_of_the_steps_is_averaged_and_reported_now_and_then() -> None:
    reader = MetricReader(parse_metric("loss"), 10)
    found = {step: reader.read("step", step, {"loss": float(step)}) for step in range(1, 31)}
    assert {step: value for step, value in found.items() if value is not None} == {10: 5.5, 20: 15.5, 30: 25.5}


def log(folder: Path, *events: dict[str, Any]) -> Path:
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_a_trial_has_the_best_of_its_evaluations(tmp_path: Path) -> None:
    values = {5: 3.0, 10: 2.0, 15: 2.0, 20: 2.5}
    events = [{"event": "evaluation", "step": step, "val/loss": value, "val/acc": True} for step, value in values.items()]
    curve = read_curve(log(tmp_path, {"event": "step", "step": 21, "loss": 1.0}, *events), parse_metric("val/loss"))
    assert curve == TrialCurve([*values.items()], 21, False, ("val/loss", "val/acc", "loss"))
    assert summarize_curve(curve, parse_metric("val/loss min")) == (2.0, 10) and summarize_curve(curve, parse_metric("val/loss max")) == (
        3.0,
        5,
    )
    assert read_curve(tmp_path, parse_metric("val/acc")).points == [], "a boolean is no number"


def test_of_a_metric_of_the_steps_the_last_ones_count(tmp_path: Path) -> None:
    events = [{"event": "step", "step": step, "loss": float(step)} for step in range(1, 31)]
    curve = read_curve(log(tmp_path, *events), parse_metric("loss"))
    assert summarize_curve(curve, parse_metric("loss")) == (sum(range(31 - AVERAGED, 31)) / AVERAGED, None)
    assert summarize_curve(read_curve(tmp_path / "none", parse_metric("loss")), parse_metric("loss")) == (None, None)


def test_the_best_trial_is_first_and_a_diverged_one_last() -> None:
    statuses: list[tuple[Any, float | None]] = [("finished", 2.0), ("stopped early", 1.0), ("diverged", 0.5), ("failed", None)]
    statuses.append(("finished", 1.0))
    trials = [TrialRecord(number=n, values={}, run_seed=0, status=status, value=value) for n, (status, value) in enumerate(statuses)]
    assert [trial.number for trial in rank_trials(trials, parse_metric("loss min"))] == [1, 4, 0, 3, 2]
    assert [trial.number for trial in rank_trials(trials, parse_metric("loss max"))] == [0, 1, 4, 3, 2]


def test_a_missing_metric_is_explained_with_the_nearest_name() -> None:
    curve = TrialCurve([], 0, False, ("loss", "val/loss"))
    assert explain_missing_metric(parse_metric("val/los"), [curve]) == "no trial has logged val/los; did you mean --metric val/loss?"
    assert explain_missing_metric(parse_metric("wer"), [curve]) == "no trial has logged wer; the logs have loss, val/loss"
    assert "has diverged" in explain_missing_metric(parse_metric("loss"), [curve])
