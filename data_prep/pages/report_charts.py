"""SVG geometry of the charts of the HTML reports: histograms, and curves of removed duration over a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overtone.finetune.pages.jinja_environment import format_number

WIDTH, HEIGHT = 320.0, 120.0
"""Size of the plot in SVG units."""
BARS, TICKS, STEPS = 22, 5, 120
OUTLIERS = (0.5, 99.5)
"""Percentiles of the axis range. Values beyond are counted in the outermost bar; otherwise one outlier would flatten the rest."""


@dataclass(frozen=True)
class Tick:
    """A tick on the horizontal axis."""

    x: float
    label: str


@dataclass(frozen=True)
class Bar:
    """One histogram bar: kept clips at the bottom, rejected ones stacked on top."""

    x: float
    width: float
    kept_y: float
    kept_height: float
    lost_y: float
    lost_height: float
    tooltip: str


@dataclass(frozen=True)
class Histogram:
    """Histogram of one measure."""

    title: str
    unit: str
    bars: list[Bar]
    ticks: list[Tick]
    most: int
    """Clips in the highest bar."""
    median: str
    middle: tuple[str, str]
    """5th and 95th percentile."""
    unknown: int
    """Clips without this measure."""
    beyond: int
    """Values beyond the axis, counted in the outermost bars."""


@dataclass(frozen=True)
class Curve:
    """Seconds that a rule removes as a function of its limit."""

    path: str
    area: str
    now: Tick
    now_y: float
    ticks: list[Tick]
    most: float
    """Seconds at the top of the axis."""


def make_histogram(title: str, unit: str, kept: Sequence[float | None], lost: Sequence[float | None]) -> Histogram | None:
    """Return the histogram of kept and rejected values; None if the measure is unknown for all clips."""
    good, bad = (np.array([value for value in values if value is not None], float) for values in (kept, lost))
    both = np.concatenate([good, bad])
    if not len(both):
        return None
    low, high = np.percentile(both, OUTLIERS)
    edges = choose_ticks(float(low), float(high), BARS)
    (counts_good, counts_bad) = (np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] for values in (good, bad))
    most = int((counts_good + counts_bad).max())
    return Histogram(
        title=title,
        unit=unit,
        bars=[_make_bar(edges, at, int(counts_good[at]), int(counts_bad[at]), most, unit) for at in range(len(edges) - 1)],
        ticks=_make_ticks(edges[0], edges[-1]),
        most=most,
        median=format_number(float(np.median(both))),
        middle=(format_number(float(np.percentile(both, 5))), format_number(float(np.percentile(both, 95)))),
        unknown=len(kept) + len(lost) - len(both),
        beyond=int(((both < edges[0]) | (both > edges[-1])).sum()),
    )


def make_curve(limits: np.ndarray, removed: np.ndarray, now: float, removed_now: float) -> Curve:
    """Return the curve of removed seconds. `limits` [N]: ascending; `removed` [N]: seconds at each limit; `now`, `removed_now`: the current
    limit."""
    low, high = float(limits[0]), float(limits[-1])
    most = max(float(removed.max()), removed_now) or 1.0
    points = [(_scale_x(limit, low, high), HEIGHT * (1 - seconds / most)) for limit, seconds in zip(limits, removed, strict=True)]
    path = " ".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (x, y) in enumerate(points))
    return Curve(
        path=path,
        area=f"{path} L{points[-1][0]:.1f} {HEIGHT:.1f} L{points[0][0]:.1f} {HEIGHT:.1f} Z",
        now=Tick(_scale_x(now, low, high), format_number(now)),
        now_y=round(HEIGHT * (1 - removed_now / most), 1),
        ticks=_make_ticks(low, high),
        most=most,
    )


def choose_ticks(low: float, high: float, most: int) -> np.ndarray:
    """Return round tick values that enclose `low` … `high`, fp64 [ticks]: at least two, at most about `most`."""
    from matplotlib.ticker import MaxNLocator

    if high - low < 1e-9 * max(abs(low), abs(high), 1e-3):
        low, high = low - 0.5, high + 0.5
    return np.asarray(MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))


def _make_bar(edges: np.ndarray, at: int, good: int, bad: int, most: int, unit: str) -> Bar:
    left, right = (_scale_x(float(edge), float(edges[0]), float(edges[-1])) for edge in edges[at : at + 2])
    tall_good, tall_bad = round(HEIGHT * good / most, 1), round(HEIGHT * bad / most, 1)
    return Bar(
        x=round(left + 0.5, 1),
        width=round(right - left - 1.0, 1),
        kept_y=round(HEIGHT - tall_good, 1),
        kept_height=tall_good,
        lost_y=round(HEIGHT - tall_good - tall_bad, 1),
        lost_height=tall_bad,
        tooltip=f"{format_number(float(edges[at]))} to {format_number(float(edges[at + 1]))} {unit}: {good} kept, {bad} rejected",
    )


def _make_ticks(low: float, high: float) -> list[Tick]:
    inside = [float(value) for value in choose_ticks(low, high, TICKS) if low - 1e-9 <= value <= high + 1e-9]
    return [Tick(_scale_x(value, low, high), format_number(value)) for value in inside]


def _scale_x(value: float, low: float, high: float) -> float:
    return round(WIDTH * (value - low) / (high - low), 1) if high > low else WIDTH / 2
