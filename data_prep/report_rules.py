"""What each rule sees in a dataset: what it removes, what it would remove with another limit, and which clips are near to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from data_prep.report_clips import Clip, Dataset
from data_prep.score import PRESETS, TRAINABLE, Candidate, Measured, Rule, candidates, presets
from data_prep.segment import Lengths

DEFAULT_PRESET = "default"
ABOUT_LENGTH = {rule.reason for rule in TRAINABLE}
"""A short clip is no bad clip."""
ENDS = (1.0, 99.0)
"""Percentiles between which other limits are of interest."""


@dataclass(frozen=True)
class Judged:
    """A measured clip and what the rules look at."""

    clip: Clip
    candidate: Candidate


@dataclass(frozen=True)
class Weakness:
    """Which measure of a clip is nearest to its limit, or furthest beyond it."""

    rule: Rule
    value: float
    margin: float
    """On the good side, in interquartile ranges of the dataset: so decibels and probabilities can be compared."""

    @property
    def limit(self) -> float:
        return _limit(self.rule)


@dataclass(frozen=True)
class Removal:
    """What a rule removes with one limit, whatever the other rules do."""

    limit: float
    clips: int
    seconds: float


@dataclass(frozen=True)
class Finding:
    """One rule over all measured clips."""

    rule: Rule
    applied: bool
    """False: the preset of the run has no such rule."""
    values: np.ndarray
    """[clips whose value is known]"""
    seconds: np.ndarray
    """[same]"""
    alone: Removal
    """What this rule removes and no other rule of the preset."""

    @property
    def limit(self) -> float:
        return _limit(self.rule)

    @property
    def is_lower(self) -> bool:
        """The limit is one from below."""
        return self.rule.least > -inf

    @cached_property
    def now(self) -> Removal:
        return self.at(self.limit)

    @cached_property
    def reach(self) -> tuple[float, float]:
        """The limits of interest: where the values lie, and the limit itself."""
        low, high = np.percentile(self.values, ENDS)
        return min(float(low), self.limit), max(float(high), self.limit)

    @property
    def varies(self) -> bool:
        """Whether another limit could make a difference worth a curve."""
        return len(np.unique(self.values)) > 2

    def at(self, limit: float) -> Removal:
        """What would go with another limit."""
        gone = self.values < limit if self.is_lower else self.values > limit
        return Removal(limit, int(gone.sum()), float(self.seconds[gone].sum()))


def judged(dataset: Dataset) -> list[Judged]:
    """Every clip that was measured, as the rules saw it."""
    clips = [(clip, clip.quality) for clip in (*dataset.kept, *dataset.rejected) if clip.quality is not None and clip.stage != "codes"]
    measured = [Measured(clip.speaker, clip.seconds, clip.text, clip.language, quality) for clip, quality in clips]
    return [Judged(clip, seen) for (clip, _), seen in zip(clips, candidates(measured, _lengths(dataset)), strict=True)]


def rules_of(dataset: Dataset) -> tuple[Rule, ...]:
    """The rules that the run applied; those about length with the seconds that were asked for, which say more than distances from them."""
    lengths = _lengths(dataset)
    in_seconds = {
        "too_short": lambda rule: replace(rule, unit="s", value=_length, least=lengths.shortest),
        "too_long": lambda rule: replace(rule, unit="s", value=_length, most=lengths.longest),
    }
    hearing = dataset.summary.settings.get("text")
    every = presets(hearing.get("least_sure") if isinstance(hearing, dict) else None)
    rules = every.get(str(dataset.summary.settings.get("preset")), every[DEFAULT_PRESET])
    return tuple(in_seconds.get(rule.reason, lambda rule: rule)(rule) for rule in rules)


def findings(everything: Sequence[Judged], applied: Sequence[Rule]) -> list[Finding]:
    """One for each rule that any preset knows: those that were applied first, with their own limits."""
    reasons = {rule.reason for rule in applied}
    others = [rule for rule in PRESETS["clean"] if rule.reason not in reasons]
    failed = [{rule.reason for rule in applied if rule.fails(one.candidate)} for one in everything]
    return [_finding(rule, rule.reason in reasons, everything, failed) for rule in (*applied, *others)]


def weaknesses(everything: Sequence[Judged], rules: Sequence[Rule]) -> dict[str, Weakness]:
    """Clip id → its weakest measure, its length left out. A clip of which nothing varies is not in the result."""
    found: dict[str, Weakness] = {}
    for rule in rules:
        values = {one.clip.id: value for one in everything if (value := rule.value(one.candidate)) is not None and one.clip.id}
        if values and rule.reason not in ABOUT_LENGTH:
            for id, margin in _margins(rule, values).items():
                if id not in found or margin < found[id].margin:
                    found[id] = Weakness(rule, values[id], margin)
    return found


def _margins(rule: Rule, values: dict[str, float]) -> dict[str, float]:
    """Where most clips have the same value, as with samples at full scale, it says nothing about them: only about those that fail."""
    spread = float(np.subtract(*np.percentile(list(values.values()), [75, 25])))
    unit = spread or abs(_limit(rule)) or 1.0
    margins = {id: min(value - rule.least, rule.most - value) / unit for id, value in values.items()}
    return {id: margin for id, margin in margins.items() if spread > 0 or margin < 0}


def _finding(rule: Rule, applied: bool, everything: Sequence[Judged], failed: Sequence[set[str]]) -> Finding:
    known = [(value, one.clip.seconds) for one in everything if (value := rule.value(one.candidate)) is not None]
    alone = [one.clip.seconds for one, reasons in zip(everything, failed, strict=True) if reasons == {rule.reason}]
    values, seconds = np.array(known).reshape(-1, 2).T
    return Finding(rule, applied, values, seconds, Removal(_limit(rule), len(alone), sum(alone)))


def _limit(rule: Rule) -> float:
    return rule.least if rule.least > -inf else rule.most


def _length(candidate: Candidate) -> float:
    return candidate.seconds


def _lengths(dataset: Dataset) -> Lengths:
    """Those of the run; without them nothing is too short or too long."""
    given = dataset.summary.settings.get("lengths")
    return Lengths(**given) if isinstance(given, dict) else Lengths(target=0.0, shortest=0.0, longest=inf)
