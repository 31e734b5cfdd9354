"""The metric of a study: its value in the log of a trial, when it is reported, and which trial is the best."""

from __future__ import annotations

import difflib
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import LOG, read_log
from overtone.finetune.tuning.study_record import TrialRecord

VALIDATION = "val/"
"""Beginning of the name of each metric of the evaluations."""
AVERAGED = 10
"""Steps over which a metric of the steps, such as the training loss, is averaged: a single step is as good as its rows are easy."""
UNMEASURED = frozenset({"time", "step"})


@dataclass(frozen=True)
class TrialMetric:
    """A name that log.jsonl holds, and which values are better."""

    name: str
    highest: bool

    @property
    def text(self) -> str:
        return f"{self.name} {'max' if self.highest else 'min'}"

    @property
    def best_by(self) -> str | None:
        """The metric as a value of `checkpoint.best_by`; None for a metric that the evaluations do not measure."""
        return self.text.removeprefix(VALIDATION) if self.name.startswith(VALIDATION) else None

    def order(self, value: float | None) -> float:
        """Return a number that is the smaller, the better the value; without a value the largest."""
        return math.inf if value is None else -value if self.highest else value


def parse_metric(text: str) -> TrialMetric:
    """Parse `NAME`, `NAME min` or `NAME max`. Raises `UserError`."""
    name, _, direction = text.partition(" ")
    if not name or name in UNMEASURED or direction not in ("", "min", "max"):
        raise UserError(f"--metric {text}: expected the name of a metric in log.jsonl, and min or max, as in `val/loss min`")
    return TrialMetric(name, direction == "max")


@dataclass
class MetricReader:
    """Follows the events of one trial."""

    metric: TrialMetric
    every: int
    """Steps between reports of a metric that training steps log. A metric of the evaluations is reported at each evaluation."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=AVERAGED))

    def read(self, kind: str, step: int, facts: Mapping[str, JsonValue]) -> float | None:
        """Return the value to report after this event; None if there is none."""
        value = find_value(facts, self.metric.name)
        if value is None:
            return None
        if kind != "step":
            return value
        self.recent.append(value)
        return sum(self.recent) / len(self.recent) if step % self.every == 0 else None


def find_value(facts: Mapping[str, JsonValue], name: str) -> float | None:
    """Return a finite number of an event; None without one."""
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or name in UNMEASURED:
        return None
    return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class TrialCurve:
    """The metric in a trial's log."""

    points: list[tuple[int, float]]
    """(step, value), by step."""
    step: int
    """The last optimizer step that was logged."""
    averaged: bool
    """True if it is a metric of the steps."""
    names: tuple[str, ...]
    """All metrics that the log holds."""


def read_curve(run_dir: Path, metric: TrialMetric) -> TrialCurve:
    """Return the metric in the log of a run. Without a log there are no points."""
    try:
        events = sorted(read_log(run_dir / LOG), key=lambda event: int(event["step"]))
    except OSError:
        events = []
    found = [(event["step"], value) for event in events if (value := find_value(event, metric.name)) is not None]
    averaged = any(event["event"] == "step" and metric.name in event for event in events)
    names = dict.fromkeys(name for event in events if event["event"] in ("step", "evaluation") for name in event)
    return TrialCurve(
        found,
        max((event["step"] for event in events), default=0),
        averaged,
        tuple(name for name in names if name not in ("event", *UNMEASURED)),
    )


def summarize_curve(curve: TrialCurve, metric: TrialMetric) -> tuple[float | None, int | None]:
    """Return the best evaluation as (value, step), where the earlier of equal ones wins; for a metric of the steps the mean over the last
    of them."""
    if not curve.points:
        return None, None
    if curve.averaged:
        last = [value for _, value in curve.points[-AVERAGED:]]
        return sum(last) / len(last), None
    step, value = min(curve.points, key=lambda point: (metric.order(point[1]), point[0]))
    return value, step


def rank_trials(trials: Iterable[TrialRecord], metric: TrialMetric) -> list[TrialRecord]:
    """Return the best trial first; those without a value last. A diverged trial ranks below all others, whatever it had reached before."""
    return sorted(trials, key=lambda trial: (trial.status == "diverged", metric.order(trial.value), trial.number))


def explain_missing_metric(metric: TrialMetric, curves: Iterable[TrialCurve]) -> str:
    """Return why no trial of a study is the best."""
    names = [*dict.fromkeys(name for curve in curves for name in curve.names)]
    if metric.name in names:
        return f"every trial with a value of {metric.name} has diverged; try smaller values of train.lr"
    near = difflib.get_close_matches(metric.name, names, n=1)
    hint = f"did you mean --metric {near[0]}?" if near else f"the logs have {', '.join(names)}" if names else "the logs are empty"
    return f"no trial has logged {metric.name}; {hint}"
