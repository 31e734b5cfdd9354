"""Curves of a run as coordinates for SVG: loss and learning rate by optimizer step, of one run or of several over each other."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from overtone.data_prep.pages.report_charts import HEIGHT, WIDTH, Tick, choose_ticks
from overtone.finetune.monitoring.run_records import LOG, iterate_events, read_history
from overtone.finetune.monitoring.run_summary import LONGEST_LINE
from overtone.finetune.pages.jinja_environment import format_number

MOST_POINTS = 300
"""Points of a curve; those of a longer run are averaged."""
TICKS = 5
Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class DrawnCurve:
    """One curve of a chart."""

    name: str
    path: str
    """Path of the line, for the attribute `d`."""
    last: str
    """Its last value."""


@dataclass(frozen=True)
class LossChart:
    """Curves with one pair of axes."""

    title: str
    curves: list[DrawnCurve]
    ticks: list[Tick]
    highest: str
    lowest: str
    """Values at the upper and the lower edge."""


@dataclass(frozen=True)
class RunCurves:
    """The numbers of a run by optimizer step, in ascending order."""

    losses: dict[int, float]
    evaluations: dict[int, float]
    """Validation losses."""
    rates: dict[int, float]
    """Learning rates."""


def read_curves(run: Path) -> RunCurves:
    """Return the curves of a run from its log; empty without one."""
    rates = dict[int, float]()
    try:
        losses, evaluations = read_history(run / LOG)
    except OSError:
        return RunCurves({}, {}, {})
    with contextlib.suppress(OSError):
        for event in iterate_events(run / LOG, LONGEST_LINE):
            if event["event"] in ("started", "resumed"):
                rates = {step: rate for step, rate in rates.items() if event["event"] == "resumed" and step <= event["step"]}
            elif event["event"] == "step" and isinstance(event.get("lr"), float):
                rates[event["step"]] = event["lr"]
    found = {step: metrics["loss"] for step, metrics in evaluations.items() if "loss" in metrics}
    return RunCurves(losses, found, dict(sorted(rates.items())))


def draw_loss(runs: Mapping[str, RunCurves]) -> LossChart | None:
    """Return the chart of training and validation losses; None without two points. `runs`: by name, which a single one does not need."""
    curves = dict[str, Points]()
    for name, run in runs.items():
        prefix = f"{name}, " if len(runs) > 1 else ""
        curves |= {f"{prefix}training": [*run.losses.items()], f"{prefix}validation": [*run.evaluations.items()]}
    return draw_chart("Loss", curves)


def draw_chart(title: str, curves: Mapping[str, Points]) -> LossChart | None:
    """Return a chart of these curves; None if no curve has two points. Values that are not finite are left out."""
    finite = {name: [(step, value) for step, value in points if math.isfinite(value)] for name, points in curves.items()}
    shown = {name: thin_points(points) for name, points in finite.items() if len(points) > 1}
    if not shown:
        return None
    steps = [step for points in shown.values() for step, _ in points]
    values = [value for points in shown.values() for _, value in points]
    edges = choose_ticks(min(values), max(values), TICKS)
    low, high, first, last = float(edges[0]), float(edges[-1]), min(steps), max(steps)

    def place(step: float, value: float) -> str:
        return f"{WIDTH * (step - first) / (last - first):.1f} {HEIGHT * (1 - (value - low) / (high - low)):.1f}"

    drawn = [
        DrawnCurve(name, "M" + "L".join(place(*point) for point in points), format_number(points[-1][1])) for name, points in shown.items()
    ]
    marks = [int(tick) for tick in choose_ticks(first, last, TICKS) if first <= tick <= last and tick == int(tick)]
    ticks = [Tick(round(WIDTH * (mark - first) / (last - first), 1), str(mark)) for mark in marks]
    return LossChart(title, drawn, ticks, format_number(high), format_number(low))


def thin_points(points: Points) -> Points:
    """Return at most `MOST_POINTS` points: the means of equal parts, and the last one as it is."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-len(points) // (MOST_POINTS - 1))
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    means = [(part[len(part) // 2][0], sum(value for _, value in part) / len(part)) for part in parts]
    return [*means, points[-1]] if means[-1][0] < points[-1][0] else means
