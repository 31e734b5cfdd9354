"""Curves of a run as coordinates for SVG: loss and learning rate by optimizer step, of one run or of several over each other."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from overtone.data_prep.pages.report_charts import HEIGHT, WIDTH, Tick, choose_ticks
from overtone.finetune.monitoring.run_records import LOG, iterate_events, read_history
from overtone.finetune.monitoring.run_summary import LONGEST_LINE
from overtone.finetune.pages.jinja_environment import format_number

MOST_POINTS = 300
"""Points of a curve; those of a longer run are averaged."""
TICKS = 5
BEYOND = 1e30
"""Values beyond this are drawn as a break, as NaN is: the run has diverged, and the axis would show nothing else."""
Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class DrawnCurve:
    """One curve of a chart."""

    name: str
    path: str
    """Path of the line, for the attribute `d`; it breaks where a value cannot be drawn."""
    breaks: list[float]
    """Places of these values along the horizontal axis."""
    last: str
    """Its last value, or since which step there is none that can be drawn."""


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
    """Return a chart of these curves; None if no curve has two points. At values that are not finite, the line breaks."""
    shown = {name: thin_points(points) for name, points in curves.items() if len(points) > 1}
    if not shown:
        return None
    steps = [step for points in shown.values() for step, _ in points]
    values = [value for points in shown.values() for _, value in points if can_draw(value)] or [0.0]
    edges = choose_ticks(min(values), max(values), TICKS)
    low, high, first, last = float(edges[0]), float(edges[-1]), min(steps), max(steps)

    def across(step: float) -> float:
        return round(WIDTH * (step - first) / (last - first), 1)

    drawn = list[DrawnCurve]()
    for name, points in shown.items():
        parts = [list(part) for is_drawn, part in groupby(points, lambda point: can_draw(point[1])) if is_drawn]
        lines = ["L".join(f"{across(step)} {HEIGHT * (1 - (value - low) / (high - low)):.1f}" for step, value in part) for part in parts]
        breaks = [across(step) for step, value in points if not can_draw(value)]
        drawn.append(DrawnCurve(name, "".join(f"M{line}" for line in lines), breaks, describe_last(curves[name])))
    marks = [int(tick) for tick in choose_ticks(first, last, TICKS) if first <= tick <= last and tick == int(tick)]
    ticks = [Tick(across(mark), str(mark)) for mark in marks]
    return LossChart(title, drawn, ticks, format_number(high), format_number(low))


def can_draw(value: float) -> bool:
    """Return whether a value has a place on an axis."""
    return abs(value) <= BEYOND  # False for NaN


def describe_last(points: Points) -> str:
    """Return the last value; if it cannot be drawn, since which step there is none that can."""
    step, value = points[-1]
    if can_draw(value):
        return format_number(value)
    for earlier, other in reversed(points):
        if can_draw(other):
            break
        step = earlier
    return f"{'NaN' if math.isnan(value) else f'beyond {BEYOND:g}'} since step {step}"


def thin_points(points: Points) -> Points:
    """Return at most `MOST_POINTS` points: the means of equal parts, and the last one as it is. A part with a value that cannot be drawn
    has NaN."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-len(points) // (MOST_POINTS - 1))
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    means = [(part[len(part) // 2][0], sum(value if can_draw(value) else math.nan for _, value in part) / len(part)) for part in parts]
    return [*means, points[-1]] if means[-1][0] < points[-1][0] else means
