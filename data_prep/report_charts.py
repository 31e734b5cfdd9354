"""Histograms and step curves as shapes in a small coordinate system, for the page to draw as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDTH, HEIGHT = 320.0, 120.0
"""Of the plot, in the units of the SVG."""
BARS, TICKS, STEPS = 22, 5, 120
OUTLIERS = (0.5, 99.5)
"""Percentiles beyond which a value is counted in the outermost bar, or one slip would flatten the rest."""


@dataclass(frozen=True)
class Tick:
    """A place on the horizontal axis."""

    x: float
    label: str


@dataclass(frozen=True)
class Bar:
    """Kept clips below, rejected ones on top of them."""

    x: float
    width: float
    kept_y: float
    kept_height: float
    lost_y: float
    lost_height: float
    says: str


@dataclass(frozen=True)
class Histogram:
    """Of one measure."""

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
    """Seconds that a rule removes, over its limit."""

    path: str
    area: str
    now: Tick
    now_y: float
    ticks: list[Tick]
    most: float
    """Seconds at the upper edge."""


def histogram(title: str, unit: str, kept: Sequence[float | None], lost: Sequence[float | None]) -> Histogram | None:
    """None if the measure is unknown for all clips."""
    good, bad = (np.array([value for value in values if value is not None], float) for values in (kept, lost))
    both = np.concatenate([good, bad])
    if not len(both):
        return None
    low, high = np.percentile(both, OUTLIERS)
    edges = nice(float(low), float(high), BARS)
    (counts_good, counts_bad) = (np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] for values in (good, bad))
    most = int((counts_good + counts_bad).max())
    return Histogram(
        title=title,
        unit=unit,
        bars=[_bar(edges, at, int(counts_good[at]), int(counts_bad[at]), most, unit) for at in range(len(edges) - 1)],
        ticks=_ticks(edges[0], edges[-1]),
        most=most,
        median=number(float(np.median(both))),
        middle=(number(float(np.percentile(both, 5))), number(float(np.percentile(both, 95)))),
        unknown=len(kept) + len(lost) - len(both),
        beyond=int(((both < edges[0]) | (both > edges[-1])).sum()),
    )


def curve(limits: np.ndarray, removed: np.ndarray, now: float, removed_now: float) -> Curve:
    """`limits`: ascending; `removed`: seconds with each of them."""
    low, high = float(limits[0]), float(limits[-1])
    most = max(float(removed.max()), removed_now) or 1.0
    points = [(_across(limit, low, high), HEIGHT * (1 - seconds / most)) for limit, seconds in zip(limits, removed, strict=True)]
    path = " ".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (x, y) in enumerate(points))
    return Curve(
        path=path,
        area=f"{path} L{points[-1][0]:.1f} {HEIGHT:.1f} L{points[0][0]:.1f} {HEIGHT:.1f} Z",
        now=Tick(_across(now, low, high), number(now)),
        now_y=round(HEIGHT * (1 - removed_now / most), 1),
        ticks=_ticks(low, high),
        most=most,
    )


def nice(low: float, high: float, most: int) -> np.ndarray:
    """Round numbers that enclose `low` … `high`: at least two, at most about `most`."""
    from matplotlib.ticker import MaxNLocator

    if high - low < 1e-9 * max(abs(low), abs(high), 1e-3):
        low, high = low - 0.5, high + 0.5
    return np.asarray(MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))


def number(value: float) -> str:
    """Three digits that matter, no exponent where people expect none, a true minus."""
    rounded = float(f"{value:.3g}")
    text = f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"
    return text.replace(",", "\u202f").replace("-", "−")


def _bar(edges: np.ndarray, at: int, good: int, bad: int, most: int, unit: str) -> Bar:
    left, right = (_across(float(edge), float(edges[0]), float(edges[-1])) for edge in edges[at : at + 2])
    tall_good, tall_bad = round(HEIGHT * good / most, 1), round(HEIGHT * bad / most, 1)
    return Bar(
        x=round(left + 0.5, 1),
        width=round(right - left - 1.0, 1),
        kept_y=round(HEIGHT - tall_good, 1),
        kept_height=tall_good,
        lost_y=round(HEIGHT - tall_good - tall_bad, 1),
        lost_height=tall_bad,
        says=f"{number(float(edges[at]))} to {number(float(edges[at + 1]))} {unit}: {good} kept, {bad} rejected",
    )


def _ticks(low: float, high: float) -> list[Tick]:
    inside = [float(value) for value in nice(low, high, TICKS) if low - 1e-9 <= value <= high + 1e-9]
    return [Tick(_across(value, low, high), number(value)) for value in inside]


def _across(value: float, low: float, high: float) -> float:
    return round(WIDTH * (value - low) / (high - low), 1) if high > low else WIDTH / 2
