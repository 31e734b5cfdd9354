"""What an evaluation found: figures by system and set of texts, what similarity is worth, and whether training helped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import eval_figures as figures
from .eval_figures import PACE, Difference, Metric, Scored, figure
from .eval_likeness import place
from .eval_rows import ALL, SEEN, UNSEEN, groups_of
from .eval_systems import RECORDINGS, System

SET_TITLES = {UNSEEN: "Texts that are not in the training data", SEEN: "Texts of the training data", ALL: "All texts"}
DRIFT = 0.1
"""Change of the speaking rate from one checkpoint to another that is told: more than sampling makes of the same texts."""


@dataclass(frozen=True)
class Evaluation:
    """Everything that the documents are written from."""

    systems: Sequence[System]
    """Those that speak, in the order of the table; checkpoints by step."""
    clips: Mapping[str, Sequence[Scored]]
    """By name of the system; the recordings are one more, if the data has some."""
    encoders: Sequence[str]
    strangers: Mapping[str, float]
    """By encoder: mean likeness of real clips to other speakers; absent where the data has one speaker."""
    notes: Sequence[str]
    """What was not measured, and why."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Of all that has figures: the recordings first, as what is to be reached."""
        return [*([RECORDINGS] if self.clips.get(RECORDINGS) else []), *(system.name for system in self.systems)]

    @property
    def metrics(self) -> list[Metric]:
        """Those with a figure for at least one system."""
        every = [clip for clips in self.clips.values() for clip in clips]
        return [metric for metric in figures.metrics(self.encoders) if figure(metric, every) is not None]

    @property
    def groups(self) -> list[str]:
        return groups_of(clip.item for clips in self.clips.values() for clip in clips)

    def of(self, name: str, group: str) -> list[Scored]:
        return [clip for clip in self.clips.get(name, ()) if clip.item.group == group]


@dataclass(frozen=True)
class Compared:
    """A trained voice beside the untrained base."""

    system: str
    base: str
    group: str
    metric: Metric
    before: float
    after: float
    difference: Difference


@dataclass(frozen=True)
class Worth:
    """What an encoder's figures mean."""

    encoder: str
    stranger: float | None
    """Real clips against other speakers."""
    same: float | None
    """Real clips against other clips of their speaker."""
    places: Mapping[str, float | None]
    """System → where it stands from a stranger (0) to the speaker (1)."""


def compared(evaluation: Evaluation) -> list[Compared]:
    """Every trained voice against the base, in every set and by every metric of which one direction is better."""
    bases = [system for system in evaluation.systems if system.way == "cloned"]
    trained = [system for system in evaluation.systems if system.way == "named"]
    rows = [
        _compared(evaluation, system.name, base.name, group, metric)
        for system in trained
        for base in bases
        for group in evaluation.groups
        for metric in evaluation.metrics
    ]
    return [row for row in rows if row is not None]


def _compared(evaluation: Evaluation, system: str, base: str, group: str, metric: Metric) -> Compared | None:
    own, other = evaluation.of(system, group), evaluation.of(base, group)
    before, after, found = figure(metric, other), figure(metric, own), figures.difference(metric, own, other)
    if found is None or before is None or after is None:
        return None
    return Compared(system, base, group, metric, before, after, found)


def worth(evaluation: Evaluation) -> list[Worth]:
    """Of each encoder, over all texts."""
    return [_worth(evaluation, encoder) for encoder in evaluation.encoders]


def _worth(evaluation: Evaluation, encoder: str) -> Worth:
    metric, stranger = figures.likeness(encoder), evaluation.strangers.get(encoder)
    found = {name: figure(metric, evaluation.clips.get(name, ())) for name in evaluation.names}
    same = found.get(RECORDINGS)
    places = {
        name: None if value is None or same is None or stranger is None else place(value, stranger, same) for name, value in found.items()
    }
    return Worth(encoder, stranger, same, places)


def curve(evaluation: Evaluation, metric: Metric, group: str) -> list[tuple[int, float]]:
    """(step, figure) of the checkpoints."""
    points = [(system.step, figure(metric, evaluation.of(system.name, group))) for system in evaluation.systems]
    return [(step, value) for step, value in points if step is not None and value is not None]


def drifts(evaluation: Evaluation) -> list[str]:
    """A sentence for each set of texts in which speech became faster or slower over the checkpoints."""
    told = []
    for group in evaluation.groups:
        points = curve(evaluation, PACE, group)
        if len(points) < 2 or not points[0][1]:
            continue
        (first, before), (last, after) = points[0], points[-1]
        change = after / before - 1
        if abs(change) > DRIFT:
            manner = "faster" if change > 0 else "slower"
            told.append(
                f"{SET_TITLES[group]}: speech became {abs(change):.0%} {manner} from step {first} to step {last} "
                f"({before:.1f} to {after:.1f} characters a second). A rate that moves with every checkpoint is what shifted labels cause."
            )
    return told
