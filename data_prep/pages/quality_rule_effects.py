"""Effect of the quality rules on a dataset: what each rule removes at its own and at other limits, and the weakest measure of each clip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from overtone.data_prep.clips.quality_rules import PRESETS, TRAINABLE, Candidate, Rule, RuleInput, build_candidates, make_presets
from overtone.data_prep.pages.voice_dataset_loader import Dataset, ReportClip
from overtone.data_prep.segmentation.clip_segmentation import Lengths

DEFAULT_PRESET = "default"
LENGTH_REASONS = {rule.reason for rule in TRAINABLE}
"""Reasons that are not counted as weaknesses: a short clip is not a bad clip."""
ENDS = (1.0, 99.0)
"""Percentiles between which other limits are shown."""


@dataclass(frozen=True)
class CandidateClip:
    """A measured clip of the report, with the input of the rules."""

    clip: ReportClip
    candidate: Candidate


@dataclass(frozen=True)
class Weakness:
    """The measure of a clip that is nearest to its limit, or furthest beyond it."""

    rule: Rule
    value: float
    margin: float
    """Distance to the limit, positive on the passing side, in interquartile ranges of the dataset, so that measures with different units
    can be compared."""

    @property
    def limit(self) -> float:
        return _read_limit(self.rule)


@dataclass(frozen=True)
class RuleRemoval:
    """Clips that a rule removes at one limit, regardless of other rules."""

    limit: float
    clips: int
    seconds: float


@dataclass(frozen=True)
class RuleFinding:
    """Effect of one rule over all measured clips."""

    rule: Rule
    applied: bool
    """True if the preset of the run contains the rule."""
    values: np.ndarray
    """[clips with a known value]"""
    seconds: np.ndarray
    """[clips with a known value]: their durations."""
    alone: RuleRemoval
    """Clips that only this rule of the preset removes."""

    @property
    def limit(self) -> float:
        return _read_limit(self.rule)

    @property
    def is_lower(self) -> bool:
        """True if the limit is a lower bound."""
        return self.rule.least > -inf

    @cached_property
    def now(self) -> RuleRemoval:
        return self.compute_removal(self.limit)

    @cached_property
    def reach(self) -> tuple[float, float]:
        """Range of limits to show: the range of the values, and the limit itself."""
        low, high = np.percentile(self.values, ENDS)
        return min(float(low), self.limit), max(float(high), self.limit)

    @property
    def varies(self) -> bool:
        """True if the values differ enough to draw a curve."""
        return len(np.unique(self.values)) > 2

    def compute_removal(self, limit: float) -> RuleRemoval:
        """Return the clips that the rule would remove at another limit."""
        gone = self.values < limit if self.is_lower else self.values > limit
        return RuleRemoval(limit, int(gone.sum()), float(self.seconds[gone].sum()))


def build_candidate_clips(dataset: Dataset) -> list[CandidateClip]:
    """Return every measured clip, as the rules see it."""
    clips = [(clip, clip.quality) for clip in (*dataset.kept, *dataset.rejected) if clip.quality is not None and clip.stage != "codes"]
    measured = [RuleInput(clip.speaker, clip.seconds, clip.text, clip.language, quality) for clip, quality in clips]
    return [CandidateClip(clip, seen) for (clip, _), seen in zip(clips, build_candidates(measured, _read_lengths(dataset)), strict=True)]


def list_rules(dataset: Dataset) -> tuple[Rule, ...]:
    """Return the rules that the run applied. Length rules show durations in seconds instead of distances from the limit."""
    lengths = _read_lengths(dataset)
    in_seconds = {
        "too_short": lambda rule: replace(rule, unit="s", value=_read_seconds, least=lengths.shortest),
        "too_long": lambda rule: replace(rule, unit="s", value=_read_seconds, most=lengths.longest),
    }
    text_settings = dataset.summary.settings.get("text")
    every = make_presets(text_settings.get("least_sure") if isinstance(text_settings, dict) else None)
    rules = every.get(str(dataset.summary.settings.get("preset")), every[DEFAULT_PRESET])
    return tuple(in_seconds.get(rule.reason, lambda rule: rule)(rule) for rule in rules)


def compute_findings(everything: Sequence[CandidateClip], applied: Sequence[Rule]) -> list[RuleFinding]:
    """Return one finding per rule of any preset; rules that the run applied come first, with their limits."""
    reasons = {rule.reason for rule in applied}
    others = [rule for rule in PRESETS["clean"] if rule.reason not in reasons]
    failed = [{rule.reason for rule in applied if rule.fails(one.candidate)} for one in everything]
    return [_compute_finding(rule, rule.reason in reasons, everything, failed) for rule in (*applied, *others)]


def find_weaknesses(everything: Sequence[CandidateClip], rules: Sequence[Rule]) -> dict[str, Weakness]:
    """Return clip id → its weakest measure, length excluded. Clips whose measures do not vary are not in the result."""
    found: dict[str, Weakness] = {}
    for rule in rules:
        values = {one.clip.id: value for one in everything if (value := rule.value(one.candidate)) is not None and one.clip.id}
        if values and rule.reason not in LENGTH_REASONS:
            for id, margin in _compute_margins(rule, values).items():
                if id not in found or margin < found[id].margin:
                    found[id] = Weakness(rule, values[id], margin)
    return found


def _compute_margins(rule: Rule, values: dict[str, float]) -> dict[str, float]:
    """Return clip id → margin. If most clips share one value, as with samples at full scale, only failing clips get a margin."""
    spread = float(np.subtract(*np.percentile(list(values.values()), [75, 25])))
    unit = spread or abs(_read_limit(rule)) or 1.0
    margins = {id: min(value - rule.least, rule.most - value) / unit for id, value in values.items()}
    return {id: margin for id, margin in margins.items() if spread > 0 or margin < 0}


def _compute_finding(rule: Rule, applied: bool, everything: Sequence[CandidateClip], failed: Sequence[set[str]]) -> RuleFinding:
    known = [(value, one.clip.seconds) for one in everything if (value := rule.value(one.candidate)) is not None]
    alone = [one.clip.seconds for one, reasons in zip(everything, failed, strict=True) if reasons == {rule.reason}]
    values, seconds = np.array(known).reshape(-1, 2).T
    return RuleFinding(rule, applied, values, seconds, RuleRemoval(_read_limit(rule), len(alone), sum(alone)))


def _read_limit(rule: Rule) -> float:
    return rule.least if rule.least > -inf else rule.most


def _read_seconds(candidate: Candidate) -> float:
    return candidate.seconds


def _read_lengths(dataset: Dataset) -> Lengths:
    """Return the length limits of the run; without them, no clip is too short or too long."""
    given = dataset.summary.settings.get("lengths")
    return Lengths(**given) if isinstance(given, dict) else Lengths(target=0.0, shortest=0.0, longest=inf)
