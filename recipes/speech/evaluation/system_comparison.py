"""Comparison of the systems of an evaluation: trained voices with the base, scales of speaker similarity, change over the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from overtone.recipes.speech.evaluation import metric_aggregation
from overtone.recipes.speech.evaluation.metric_aggregation import PACE, Difference, Metric, metric_value
from overtone.recipes.speech.evaluation.results import SET_TITLES, Evaluation
from overtone.recipes.speech.evaluation.speaker_similarity import scale_position
from overtone.recipes.speech.evaluation.systems import RECORDINGS

DRIFT = 0.1
"""Relative change of the speaking rate between checkpoints that is reported; sampling causes less on the same texts."""


@dataclass(frozen=True)
class Comparison:
    """A trained voice compared with the model before training."""

    system: str
    base: str
    group: str
    metric: Metric
    before: float
    after: float
    difference: Difference


@dataclass(frozen=True)
class SimilarityScale:
    """The range of an encoder's similarities."""

    encoder: str
    stranger: float | None
    """Mean similarity of real clips to other speakers."""
    same: float | None
    """Mean similarity of real clips to other clips of their speaker."""
    places: Mapping[str, float | None]
    """System → position between another speaker (0) and the speaker (1)."""


def compare_with_base(evaluation: Evaluation) -> list[Comparison]:
    """Every trained voice against the base, in every set of texts and by every metric with a better direction."""
    bases = [system for system in evaluation.systems if system.is_base]
    rows = [
        _compare(evaluation, system.name, base.name, group, metric)
        for system in evaluation.trained
        for base in bases
        for group in evaluation.groups
        for metric in evaluation.metrics
    ]
    return [row for row in rows if row is not None]


def _compare(evaluation: Evaluation, system: str, base: str, group: str, metric: Metric) -> Comparison | None:
    own, other = evaluation.of(system, group), evaluation.of(base, group)
    own, other = metric_aggregation.select_common(metric, own, other), metric_aggregation.select_common(metric, other, own)
    before, after, found = metric_value(metric, other), metric_value(metric, own), metric_aggregation.paired_difference(metric, own, other)
    if found is None or before is None or after is None:
        return None
    return Comparison(system, base, group, metric, before, after, found)


def similarity_scales(evaluation: Evaluation) -> list[SimilarityScale]:
    """One scale for each encoder, over all texts."""
    return [_similarity_scale(evaluation, encoder) for encoder in evaluation.encoders]


def _similarity_scale(evaluation: Evaluation, encoder: str) -> SimilarityScale:
    metric, stranger = metric_aggregation.similarity_metric(encoder), evaluation.strangers.get(encoder)
    found = {name: metric_value(metric, evaluation.clips.get(name, ())) for name in evaluation.names}
    same = found.get(RECORDINGS)
    places = {
        name: None if value is None or same is None or stranger is None else scale_position(value, stranger, same)
        for name, value in found.items()
    }
    return SimilarityScale(encoder, stranger, same, places)


def checkpoint_curve(evaluation: Evaluation, metric: Metric, group: str) -> list[tuple[int, float]]:
    """(step, value) of the checkpoints."""
    points = [(system.step, metric_value(metric, evaluation.of(system.name, group))) for system in evaluation.systems]
    return [(step, value) for step, value in points if step is not None and value is not None]


def describe_pace_drifts(evaluation: Evaluation) -> list[str]:
    """A sentence for each set of texts on which the speaking rate changed by more than `DRIFT` over the checkpoints."""
    notes = []
    for group in evaluation.groups:
        points = checkpoint_curve(evaluation, PACE, group)
        if len(points) < 2 or not points[0][1]:
            continue
        (first, before), (last, after) = points[0], points[-1]
        change = after / before - 1
        if abs(change) > DRIFT:
            direction = "faster" if change > 0 else "slower"
            notes.append(
                f"{SET_TITLES[group]}: speech became {abs(change):.0%} {direction} from step {first} to step {last} "
                f"({before:.1f} to {after:.1f} characters per second). Shifted labels can cause a rate that changes with every checkpoint."
            )
    return notes
