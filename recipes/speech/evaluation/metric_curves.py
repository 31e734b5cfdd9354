"""Plots of metrics over the checkpoints of a run, as coordinates for SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from overtone.data_prep.pages.report_charts import HEIGHT, WIDTH, Tick, choose_ticks
from overtone.finetune.pages.jinja_environment import format_number

LABELS = 6
"""Maximum number of labels on the horizontal axis; more would overlap."""


@dataclass(frozen=True)
class Point:
    """One checkpoint."""

    x: float
    y: float
    label: str
    """Shown when the pointer is over the point."""


@dataclass(frozen=True)
class Level:
    """A horizontal line for a value without a step: of the recordings or the base."""

    y: float
    name: str
    value: str


@dataclass(frozen=True)
class Plot:
    """One metric over the steps."""

    title: str
    unit: str
    path: str
    points: list[Point]
    levels: list[Level]
    ticks: list[Tick]
    highest: str
    lowest: str
    """Values at the upper and the lower edge, as text."""


def make_plot(title: str, unit: str, points: Sequence[tuple[int, float]], levels: Mapping[str, float]) -> Plot:
    """`points`: at least two (step, value), by step. The vertical axis ends at round numbers outside of all points and levels."""
    values = [*(value for _, value in points), *levels.values()]
    edges = choose_ticks(min(values), max(values), 5)
    low, high = float(edges[0]), float(edges[-1])
    first, last = points[0][0], points[-1][0]

    def x_of(step: int) -> float:
        return round(WIDTH * (step - first) / (last - first), 1)

    def y_of(value: float) -> float:
        return round(HEIGHT * (1 - (value - low) / (high - low)), 1)

    placed = [Point(x_of(step), y_of(value), f"step {step}: {format_number(value)} {unit}") for step, value in points]
    every = -(-len(points) // LABELS)
    return Plot(
        title=title,
        unit=unit,
        path=" ".join(f"{'L' if at else 'M'}{point.x} {point.y}" for at, point in enumerate(placed)),
        points=placed,
        levels=[Level(y_of(value), name, format_number(value)) for name, value in levels.items()],
        ticks=[Tick(x_of(step), str(step)) for step, _ in points[::every]],
        highest=format_number(high),
        lowest=format_number(low),
    )
