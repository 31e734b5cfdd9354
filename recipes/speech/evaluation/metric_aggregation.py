"""Metrics of systems, computed over all clips, and differences between systems with confidence intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from overtone.recipes.speech.evaluation.audio_measures import AudioMeasures
from overtone.recipes.speech.evaluation.confidence_intervals import Interval, draw_subsets, find_interval
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.intelligibility import AlignedWord, ErrorCounts

Part = tuple[float, float]
"""(numerator, denominator) that one clip adds to a metric."""


@dataclass(frozen=True)
class ScoredClip:
    """One clip with all its measures."""

    item: Item
    path: Path
    sound: AudioMeasures
    ended: bool
    """False: cut off at the time limit."""
    real_seconds: float | None = None
    """Duration of the recording of the same text."""
    transcript: str | None = None
    """None: no Whisper was used, or it failed."""
    errors: ErrorCounts | None = None
    words: Sequence[AlignedWord] = ()
    """The transcript beside the text; empty without a transcript."""
    similarities: Mapping[str, float | None] = field(default_factory=dict)
    """Encoder → similarity; None for a clip without a speaker vector."""
    transcribed_again: bool = False
    """True if the first transcript was unsure (`intelligibility.Recognizer.retry_below`)."""


@dataclass(frozen=True)
class Metric:
    """A ratio of two sums over clips."""

    key: str
    title: str
    unit: str
    better: Literal["lower", "higher", ""]
    """Empty: neither direction is better."""
    part: Callable[[ScoredClip], Part | None]
    """None: the clip is excluded."""


def _rate(errors: ErrorCounts | None, wrong: str, of: str) -> Part | None:
    return None if errors is None else (100.0 * getattr(errors, wrong), getattr(errors, of))


WER = Metric("wer", "WER", "%", "lower", lambda one: _rate(one.errors, "wrong_words", "words"))
CER = Metric("cer", "CER", "%", "lower", lambda one: _rate(one.errors, "wrong_characters", "characters"))
DURATION = Metric("duration_ratio", "Duration", "× real", "", lambda one: _duration_part(one))
PACE = Metric("pace", "Speaking rate", "characters/s", "", lambda one: _pace_part(one))
SILENCE = Metric("silence", "Silence", "%", "", lambda one: (100.0 * one.sound.silent_seconds, one.sound.seconds))
CLIPPING = Metric("clipping", "Clipped", "%", "lower", lambda one: (100.0 * one.sound.clipped_seconds, one.sound.seconds))
RUNAWAYS = Metric("runaways", "Not ended", "%", "lower", lambda one: (0.0 if one.ended else 100.0, 1.0))


def _duration_part(one: ScoredClip) -> Part | None:
    """None for speech that was cut off, because its duration is that of the limit."""
    return (one.sound.seconds, one.real_seconds) if one.ended and one.real_seconds else None


def _pace_part(one: ScoredClip) -> Part | None:
    return (float(len(one.item.text)), one.sound.voiced_seconds) if one.ended and one.sound.voiced_seconds > 0 else None


def similarity_metric(encoder: str) -> Metric:
    """Cosine to the mean direction of the speaker's other clips, by one encoder."""

    def part(one: ScoredClip) -> Part | None:
        found = one.similarities.get(encoder)
        return None if found is None else (found, 1.0)

    return Metric(f"similarity {encoder}", f"Similarity, {encoder}", "cosine", "higher", part)


def all_metrics(encoders: Sequence[str]) -> list[Metric]:
    """All metrics, in the order of a table's columns."""
    return [WER, CER, *map(similarity_metric, encoders), DURATION, PACE, SILENCE, CLIPPING, RUNAWAYS]


def metric_value(metric: Metric, clips: Sequence[ScoredClip]) -> float | None:
    """The metric over all clips that are not excluded; None if there are none."""
    parts = [part for one in clips if (part := metric.part(one)) is not None]
    below = sum(part[1] for part in parts)
    return sum(part[0] for part in parts) / below if below > 0 else None


Verdict = Literal["better", "worse", "no clear difference", "too few texts"]


@dataclass(frozen=True)
class Difference:
    """Difference between two systems over the texts that both spoke."""

    change: float
    low: float | None
    high: float | None
    """95 % interval; None with too few texts."""
    texts: int
    verdict: Verdict


def paired_difference(metric: Metric, clips: Sequence[ScoredClip], others: Sequence[ScoredClip]) -> Difference | None:
    """`clips` minus `others`, with the interval over texts. None for fewer than two common texts, and for metrics without a better
    direction."""
    base = {one.item.key: metric.part(one) for one in others}
    pairs = [(own, base.get(one.item.key)) for one in clips if (own := metric.part(one)) is not None]
    table = np.array([(*own, *other) for own, other in pairs if other is not None], float).reshape(-1, 4)
    if len(table) < 2 or not metric.better:
        return None
    found = find_interval(float(_change(table.sum(axis=0)[None])[0]), _change(draw_subsets(len(table)) @ table))
    return Difference(found.value, found.low, found.high, len(table), _verdict(metric, found))


def select_common(metric: Metric, clips: Sequence[ScoredClip], others: Sequence[ScoredClip]) -> list[ScoredClip]:
    """The clips that have a value of the metric, of texts that have one among `others` too."""
    common = {one.item.key for one in others if metric.part(one) is not None}
    return [one for one in clips if one.item.key in common and metric.part(one) is not None]


def _change(sums: np.ndarray) -> np.ndarray:
    """Differences [n] from sums [n, 4]: numerator and denominator of one system, then of the other."""
    return np.asarray(sums[:, 0] / np.maximum(sums[:, 1], 1e-12) - sums[:, 2] / np.maximum(sums[:, 3], 1e-12))


def _verdict(metric: Metric, found: Interval) -> Verdict:
    if found.low is None:
        return "too few texts"
    if not found.is_clear:
        return "no clear difference"
    return "better" if (found.value < 0) == (metric.better == "lower") else "worse"
