"""Statistics of a selection: four measures of each candidate, their sum as a cost, differences with intervals, ties, and the front.

Each measure is a ratio of sums over texts, and all candidates speak the same texts. All pairs of candidates share the 5 % of their
intervals: equal candidates are called worse in at most 5 % of selections, although the best one is known only afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from overtone.recipes.speech.evaluation.confidence_intervals import LEAST_TEXTS, Array, Interval, draw_subsets, find_interval, least_texts

WER, SIMILARITY, PACE, ENDINGS = "wer", "similarity", "pace", "endings"
MEASURES = (WER, SIMILARITY, PACE, ENDINGS)
"""The order of all arrays here. WER: wrong words per word. Similarity: cosine to the mean direction of the speaker's clips. Pace: seconds
that the recordings take per second that the speech takes; 1.1 is a tenth faster. Endings: share of texts with a bad ending."""
DEFAULT_WEIGHTS: Mapping[str, float] = {WER: 1.0, SIMILARITY: 1.0, PACE: 0.25, ENDINGS: 0.5}
"""A convention. A tenth of wrong words counts as much as a cosine that is 0.1 lower. A pace that is off by a tenth disturbs less, and a
text that does not end has wrong words, too."""


@dataclass(frozen=True)
class Ranking:
    """One candidate among the others."""

    name: str
    values: Mapping[str, float | None]
    """By measure; None if no clip has it."""
    cost: float
    against_best: Interval
    """Cost minus that of the best candidate."""
    tied: bool
    """True if there is such an interval and it does not exclude zero; the best candidate is, too."""
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
    """The simplest of those that are tied with it and on the front; without verdicts, the best one."""
    has_verdicts: bool = True
    """False if the texts are too few to show that any of so many candidates is worse."""

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
    pairs = count_pairs(len(parts))
    changes = pairs * int(np.count_nonzero(weighted))  # for the front, of single measures
    subsets, more_subsets = draw_subsets(texts, pairs), draw_subsets(texts, changes)
    costs = {name: float(cost_of(one.sum(axis=0), weighted)) for name, one in parts.items()}
    order = sorted(parts, key=lambda name: (costs[name], simplest.index(name)))
    rankings = []
    for at, name in enumerate(order):
        against = compare_costs(parts[name], parts[order[0]], weighted, subsets, pairs)
        dominator = next((other for other in order[:at] if dominates(parts[other], parts[name], weighted, more_subsets, changes)), None)
        values = {
            measure: None if math.isnan(value) else float(value)
            for measure, value in zip(MEASURES, values_of(parts[name].sum(axis=0)), strict=True)
        }
        tied = at == 0 or (against.low is not None and not against.is_clear)
        rankings.append(Ranking(name, values, costs[name], against, tied, dominator))
    candidates = {one.name for one in rankings if one.tied and one.dominated_by is None}
    chosen = next(name for name in simplest if name in candidates)
    return SelectionDecision(rankings, order[0], chosen, texts >= least_texts(pairs))


def count_pairs(candidates: int) -> int:
    """The number of comparisons that share the 5 %; 1 for a single candidate."""
    return max(1, math.comb(candidates, 2))


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


def compare_losses(one: Array, other: Array, subsets: Array) -> tuple[Array, Array]:
    """The losses of one candidate minus those of another, over their common texts: [measures] over all of these, and [subsets, measures]
    over subsets. A measure that has no common text counts over all texts.

    `one`, `other`: sums [texts, measures, 2]; `subsets` [subsets, texts]."""
    shared = keep_common(one, other)
    empty = shared[0][..., 1].sum(axis=0) == 0
    first, second = (np.where(empty[None, :, None], own, both) for own, both in zip((one, other), shared, strict=True))
    changes = losses_of(values_of(first.sum(axis=0))) - losses_of(values_of(second.sum(axis=0)))
    return changes, losses_of(values_of(sum_subsets(first, subsets))) - losses_of(values_of(sum_subsets(second, subsets)))


def compare_costs(one: Array, other: Array, weights: Array, subsets: Array, comparisons: int) -> Interval:
    """The cost of one candidate minus that of another. Shapes as in `compare_losses`; `weights` [measures]; `comparisons` share the 5 %."""
    changes, of_subsets = compare_losses(one, other, subsets)
    return find_interval(float(changes @ weights), of_subsets @ weights, comparisons)


def sum_subsets(parts: Array, subsets: Array) -> Array:
    """Sums [subsets, measures, 2] of parts [texts, measures, 2]."""
    return np.asarray(subsets @ parts.reshape(len(parts), -1)).reshape(len(subsets), *parts.shape[1:])


def dominates(one: Array, other: Array, weights: Array, subsets: Array, comparisons: int) -> bool:
    """Return whether a candidate is clearly better by at least one measure that counts, and clearly worse by none. Arguments as for
    `compare_costs`."""
    changes, of_subsets = compare_losses(one, other, subsets)
    found = [find_interval(float(changes[at]), of_subsets[:, at], comparisons) for at in np.flatnonzero(weights)]
    clear = [change.value < 0 for change in found if change.is_clear]
    return bool(clear) and all(clear)
