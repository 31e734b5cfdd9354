"""From measures of clips to figures of models: corpus rates, their differences, and what a difference is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from .eval_hearing import Errors
from .eval_rows import Item
from .eval_sound import Sound

Part = tuple[float, float]
"""(numerator, denominator) that one clip adds to a figure."""
RESAMPLINGS, SEED = 2000, 20240501
LEAST_TEXTS = 6
"""For a verdict: that five texts all move one way is chance in one case of sixteen (sign test), six in one of thirty-two."""
INTERVAL = (2.5, 97.5)
"""Percentiles of the bootstrap (Efron 1979): a 95 % interval."""


@dataclass(frozen=True)
class Scored:
    """One clip with everything that was measured of it."""

    item: Item
    path: Path
    sound: Sound
    ended: bool
    """False: the model did not end by itself."""
    real_seconds: float | None = None
    """Of the recording of the same text."""
    heard: str | None = None
    """None: nobody listened, or the recogniser failed."""
    errors: Errors | None = None
    likeness: Mapping[str, float | None] = field(default_factory=dict)
    """By encoder."""


@dataclass(frozen=True)
class Metric:
    """A figure that is a sum over a sum."""

    key: str
    title: str
    unit: str
    better: Literal["lower", "higher", ""]
    """Empty: neither is."""
    part: Callable[[Scored], Part | None]
    """None: the clip says nothing about it."""


def _rate(errors: Errors | None, wrong: str, of: str) -> Part | None:
    return None if errors is None else (100.0 * getattr(errors, wrong), getattr(errors, of))


WER = Metric("wer", "WER", "%", "lower", lambda one: _rate(one.errors, "wrong_words", "words"))
CER = Metric("cer", "CER", "%", "lower", lambda one: _rate(one.errors, "wrong_characters", "characters"))
DURATION = Metric("duration_ratio", "Duration", "× real", "", lambda one: _lasting(one))
PACE = Metric("pace", "Speaking rate", "characters/s", "", lambda one: _pace(one))
SILENCE = Metric("silence", "Silence", "%", "", lambda one: (100.0 * one.sound.silent_seconds, one.sound.seconds))
CLIPPING = Metric("clipping", "Clipped", "%", "lower", lambda one: (100.0 * one.sound.clipped_seconds, one.sound.seconds))
RUNAWAYS = Metric("runaways", "Not ended", "%", "lower", lambda one: (0.0 if one.ended else 100.0, 1.0))


def _lasting(one: Scored) -> Part | None:
    """Where speech was cut off, its length is that of the limit and says nothing."""
    return (one.sound.seconds, one.real_seconds) if one.ended and one.real_seconds else None


def _pace(one: Scored) -> Part | None:
    return (float(len(one.item.text)), one.sound.voiced_seconds) if one.ended and one.sound.voiced_seconds > 0 else None


def likeness(encoder: str) -> Metric:
    """Mean cosine to the speaker's other clips."""

    def part(one: Scored) -> Part | None:
        found = one.likeness.get(encoder)
        return None if found is None else (found, 1.0)

    return Metric(f"similarity {encoder}", f"Similarity, {encoder}", "cosine", "higher", part)


def metrics(encoders: Sequence[str]) -> list[Metric]:
    """All that there are, in the order of a table."""
    return [WER, CER, *map(likeness, encoders), DURATION, PACE, SILENCE, CLIPPING, RUNAWAYS]


def figure(metric: Metric, clips: Sequence[Scored]) -> float | None:
    """Over all clips that say something about it; None if none does."""
    parts = [part for one in clips if (part := metric.part(one)) is not None]
    below = sum(part[1] for part in parts)
    return sum(part[0] for part in parts) / below if below > 0 else None


Verdict = Literal["better", "worse", "no clear difference", "too few texts"]


@dataclass(frozen=True)
class Difference:
    """Of one model to another, over the texts that both said."""

    change: float
    low: float
    high: float
    """95 % interval."""
    texts: int
    verdict: Verdict


def difference(metric: Metric, clips: Sequence[Scored], others: Sequence[Scored]) -> Difference | None:
    """`clips` minus `others`, with a paired bootstrap over texts; None without two common texts, or where neither direction is better."""
    base = {one.item.key: metric.part(one) for one in others}
    pairs = [(own, base.get(one.item.key)) for one in clips if (own := metric.part(one)) is not None]
    table = np.array([(*own, *other) for own, other in pairs if other is not None], float).reshape(-1, 4)
    if len(table) < 2 or not metric.better:
        return None
    drawn = np.random.default_rng(SEED).integers(len(table), size=(RESAMPLINGS, len(table)))
    changes = _change(table[drawn].sum(axis=1))
    low, high = np.percentile(changes, INTERVAL)
    change = float(_change(table.sum(axis=0)[None])[0])
    verdict = _verdict(metric, float(low), float(high)) if len(table) >= LEAST_TEXTS else "too few texts"
    return Difference(change, float(low), float(high), len(table), verdict)


def _change(sums: np.ndarray) -> np.ndarray:
    """[n] from [n, 4]: numerator and denominator of one, then of the other."""
    return np.asarray(sums[:, 0] / np.maximum(sums[:, 1], 1e-12) - sums[:, 2] / np.maximum(sums[:, 3], 1e-12))


def _verdict(metric: Metric, low: float, high: float) -> Verdict:
    if low <= 0 <= high:
        return "no clear difference"
    return "better" if (high < 0) == (metric.better == "lower") else "worse"
