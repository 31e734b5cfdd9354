"""Figures over the checkpoints of a run, as shapes in a small coordinate system for the page to draw as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data_prep.report_charts import HEIGHT, WIDTH, Tick, format_number, round_ticks

LABELS = 6
"""Steps named on the horizontal axis at most: they would run into each other."""


@dataclass(frozen=True)
class Point:
    """One checkpoint."""

    x: float
    y: float
    says: str


@dataclass(frozen=True)
class Level:
    """A figure that has no step: of the recordings, of the base."""

    y: float
    name: str
    value: str


@dataclass(frozen=True)
class Plot:
    """One figure over the steps."""

    title: str
    unit: str
    path: str
    points: list[Point]
    levels: list[Level]
    ticks: list[Tick]
    highest: str
    lowest: str
    """Values at the upper and the lower edge."""


def plot(title: str, unit: str, points: Sequence[tuple[int, float]], levels: Mapping[str, float]) -> Plot:
    """`points`: (step, figure), at least two, by step. The vertical axis encloses points and levels with round numbers."""
    values = [*(value for _, value in points), *levels.values()]
    edges = round_ticks(min(values), max(values), 5)
    low, high = float(edges[0]), float(edges[-1])
    first, last = points[0][0], points[-1][0]

    def across(step: int) -> float:
        return round(WIDTH * (step - first) / (last - first), 1)

    def up(value: float) -> float:
        return round(HEIGHT * (1 - (value - low) / (high - low)), 1)

    placed = [Point(across(step), up(value), f"step {step}: {format_number(value)} {unit}") for step, value in points]
    every = -(-len(points) // LABELS)
    return Plot(
        title=title,
        unit=unit,
        path=" ".join(f"{'L' if at else 'M'}{point.x} {point.y}" for at, point in enumerate(placed)),
        points=placed,
        levels=[Level(up(value), name, format_number(value)) for name, value in levels.items()],
        ticks=[Tick(across(step), str(step)) for step, _ in points[::every]],
        highest=format_number(high),
        lowest=format_number(low),
    )
