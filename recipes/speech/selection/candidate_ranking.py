"""Statistics of a selection: four measures of each candidate, their sum as a cost, confidence intervals, ties, and the front of the best.

Each measure is a ratio of sums over texts, and all candidates speak the same texts. Intervals are percentiles of a bootstrap over texts
(Efron 1979, doi:10.1214/aos/1176344552), for the difference of two candidates a paired one: both are resampled together, as Bisani and Ney
do for word error rates (ICASSP 2004, doi:10.1109/ICASSP.2004.1326009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from overtone.recipes.speech.evaluation.metric_aggregation import INTERVAL, LEAST_TEXTS, RESAMPLINGS, SEED

Array = NDArray[np.float64]
WER, SIMILARITY, PACE, ENDINGS = "wer", "similarity", "pace", "endings"
MEASURES = (WER, SIMILARITY, PACE, ENDINGS)
"""The order of all arrays here. WER: wrong words per word. Similarity: cosine to the mean direction of the speaker's clips. Pace: seconds
that the recordings take per second that the speech takes; 1.1 is a tenth faster. Endings: share of texts with a bad ending."""
DEFAULT_WEIGHTS: Mapping[str, float] = {WER: 1.0, SIMILARITY: 1.0, PACE: 0.25, ENDINGS: 0.5}
"""A convention. A tenth of wrong words counts as much as a cosine that is 0.1 lower. A pace that is off by a tenth disturbs less, and a
text that does not end has wrong words, too."""


@dataclass(frozen=True)
class Interval:
    """A difference or a value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes zero."""
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Ranking:
    """One candidate among the others."""

    name: str
    values: Mapping[str, Interval | None]
    """By measure; None if no clip has it."""
    cost: Interval
    against_best: Interval
    """Cost minus that of the best candidate."""
    tied: bool
    """True if that interval includes zero; the best candidate is, too."""
    dominated_by: str | None
    """A candidate that is clearly better by at least one measure and clearly worse by none, and costs less; None: on the front."""


@dataclass(frozen=True)
class SelectionDecision:
    """The result of a selection."""

    rankings: list[Ranking]
    """By cost, the lowest first."""
    best: str
    """The candidate with the lowest cost."""
    chosen: str
    """The simplest of those that are tied with it and on the front."""

    @property
    def tied(self) -> list[str]:
        return [one.name for one in self.rankings if one.tied]

    @property
    def front(self) -> list[str]:
        return [one.name for one in self.rankings if one.dominated_by is None]


def decide(parts: Mapping[str, Array], weights: Mapping[str, float], simplest: Sequence[str]) -> SelectionDecision:
    """Rank candidates. `parts`: name → [texts, measures, 2], numerators and denominators of each text, (0, 0) where a text has no value.
    `weights`: by measure; one of 0 does not count. `simplest`: all names; of several that are tied, the first one here is chosen.

    Raises `ValueError` for fewer than `LEAST_TEXTS` texts: with these, no difference could be clear.
    """
    if (texts := len(next(iter(parts.values())))) < LEAST_TEXTS:
        raise ValueError(f"{texts} texts are too few to choose by; give {LEAST_TEXTS} or more")
    weighted = np.array([weights[measure] for measure in MEASURES])
    resampled = np.random.default_rng(SEED).integers(texts, size=(RESAMPLINGS, texts))
    costs = {name: float(cost_of(one.sum(axis=0), weighted)) for name, one in parts.items()}
    order = sorted(parts, key=lambda name: (costs[name], simplest.index(name)))
    rankings = []
    for at, name in enumerate(order):
        against = compare(parts[name], parts[order[0]], weighted, resampled)
        dominator = next((other for other in order[:at] if dominates(parts[other], parts[name], weighted, resampled)), None)
        values = {measure: estimate(parts[name], column, resampled) for column, measure in enumerate(MEASURES)}
        cost = find_interval(costs[name], cost_of(parts[name][resampled].sum(axis=1), weighted))
        rankings.append(Ranking(name, values, cost, against, at == 0 or not against.is_clear, dominator))
    candidates = {one.name for one in rankings if one.tied and one.dominated_by is None}
    return SelectionDecision(rankings, order[0], next(name for name in simplest if name in candidates))


def values_of(sums: Array) -> Array:
    """Values [..., measures] of sums [..., measures, 2]; NaN where the denominator is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums[..., 1] > 0, sums[..., 0] / sums[..., 1], np.nan)


def losses_of(values: Array) -> Array:
    """Losses [..., measures] of values [..., measures]: 0 is perfect. A value that nobody could measure (NaN), such as the pace of speech
    that never ended, is a loss of 1; so is a pace that is off by a factor of e or more."""
    wer, similarity, pace, endings = np.moveaxis(values, -1, 0)
    with np.errstate(divide="ignore"):
        off = np.minimum(np.abs(np.log(pace)), 1.0)
    found: Array = np.nan_to_num(np.stack([wer, 1 - similarity, off, endings], axis=-1), nan=1.0)
    return found


def cost_of(sums: Array, weights: Array) -> Array:
    """Costs [...] of sums [..., measures, 2]: the weighted sum of the losses."""
    found: Array = losses_of(values_of(sums)) @ weights
    return found


def keep_common(one: Array, other: Array) -> tuple[Array, Array]:
    """Both candidates' parts without the texts that only one of them has a value of, by measure."""
    common = (one[..., 1] > 0) & (other[..., 1] > 0)
    return one * common[..., None], other * common[..., None]


def compare(one: Array, other: Array, weights: Array, resampled: NDArray[np.int64]) -> Interval:
    """The cost of one candidate minus that of another, over their common texts; a measure that has none of these counts over all texts.

    `one`, `other`: sums [texts, measures, 2]; `weights` [measures]; `resampled`: indices of texts [resamplings, texts]."""
    shared = keep_common(one, other)
    empty = shared[0][..., 1].sum(axis=0) == 0
    first, second = (np.where(empty[None, :, None], own, both) for own, both in zip((one, other), shared, strict=True))
    differences = cost_of(first[resampled].sum(axis=1), weights) - cost_of(second[resampled].sum(axis=1), weights)
    return find_interval(float(cost_of(first.sum(axis=0), weights) - cost_of(second.sum(axis=0), weights)), differences)


def dominates(one: Array, other: Array, weights: Array, resampled: NDArray[np.int64]) -> bool:
    """Return whether a candidate is clearly better by at least one measure that counts, and clearly worse by none. Shapes as in
    `compare`."""
    changes = [compare(one, other, np.where(np.arange(len(weights)) == at, 1.0, 0.0), resampled) for at in np.flatnonzero(weights)]
    clear = [change.value < 0 for change in changes if change.is_clear]
    return bool(clear) and all(clear)


def estimate(parts: Array, column: int, resampled: NDArray[np.int64]) -> Interval | None:
    """Measure `column` of one candidate with its interval over texts; None if no text has a value. Shapes as in `compare`."""
    own = parts[:, column]
    if not (own[:, 1] > 0).any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = own[resampled].sum(axis=1)
        found = drawn[:, 0] / drawn[:, 1]
    return find_interval(float(own[:, 0].sum() / own[:, 1].sum()), found[np.isfinite(found)])


def find_interval(value: float, resampled: Array) -> Interval:
    """A value with the percentiles of its resampled ones."""
    low, high = np.percentile(resampled, INTERVAL)
    return Interval(value, float(low), float(high))
