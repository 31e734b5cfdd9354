"""Results of an evaluation: metrics by system and set of texts, scales of similarity, comparison with the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recipes.speech.evaluation import metric_aggregation
from recipes.speech.evaluation.evaluation_items import ALL, SEEN, UNSEEN, list_groups
from recipes.speech.evaluation.metric_aggregation import PACE, Difference, Metric, ScoredClip, metric_value
from recipes.speech.evaluation.speaker_similarity import scale_position
from recipes.speech.evaluation.systems import RECORDINGS, System

SET_TITLES = {UNSEEN: "Texts that are not in the training data", SEEN: "Texts of the training data", ALL: "All texts"}
DRIFT = 0.1
"""Relative change of the speaking rate between checkpoints that is reported; sampling causes less on the same texts."""


@dataclass(frozen=True)
class Evaluation:
    """The content of the result files."""

    systems: Sequence[System]
    """The systems that speak, in the order of the table; checkpoints by step."""
    clips: Mapping[str, Sequence[ScoredClip]]
    """By name of the system. If the data has recordings, these are one more system."""
    encoders: Sequence[str]
    strangers: Mapping[str, float]
    """By encoder: mean similarity of real clips to other speakers; empty if the data has one speaker."""
    notes: Sequence[str]
    """What was not measured, and why."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of all systems with clips: the recordings first, as the target."""
        return [*([RECORDINGS] if self.clips.get(RECORDINGS) else []), *(system.name for system in self.systems)]

    @property
    def titles(self) -> dict[str, str]:
        """Name of a system → what the page calls it."""
        return {RECORDINGS: "Real recordings", **{system.name: system.title for system in self.systems}}

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that have a value for at least one system."""
        every = [clip for clips in self.clips.values() for clip in clips]
        return [metric for metric in metric_aggregation.all_metrics(self.encoders) if metric_value(metric, every) is not None]

    @property
    def groups(self) -> list[str]:
        return list_groups(clip.item for clips in self.clips.values() for clip in clips)

    def of(self, name: str, group: str) -> list[ScoredClip]:
        return [clip for clip in self.clips.get(name, ()) if clip.item.group == group]


@dataclass(frozen=True)
class Comparison:
    """A trained voice compared with the untrained base."""

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
    bases = [system for system in evaluation.systems if system.way == "cloned"]
    trained = [system for system in evaluation.systems if system.way == "named"]
    rows = [
        _compare(evaluation, system.name, base.name, group, metric)
        for system in trained
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
