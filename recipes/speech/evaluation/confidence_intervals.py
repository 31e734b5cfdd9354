"""95 % confidence intervals of differences between systems that spoke the same texts.

An interval holds the differences that a sign-flip test (Fisher 1935) does not reject: for each text it is a coin toss which of two equal
systems does better. Its ends are order statistics of the difference over random subsets of the texts, each text in or out with probability
1/2 (Hartigan, Using Subsample Values as Typical Values, JASA 1969). So equal systems differ "clearly" in at most 5 % of cases for any
number of texts and any distribution, also with rare runaways; percentiles of a bootstrap reach 15 % with six texts. Of the two sides, both
get the longer length: a skewed distribution, such as that of rare errors, makes one of them too short.

Several comparisons share the 5 % equally (Dunn, Multiple Comparisons among Means, JASA 1961), whatever their dependence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ERROR, SEED = 0.05, 20240501
SUBSETS = 4000
"""Minimum number of random subsets; of 14 texts or fewer, all subsets are used."""
SUBSETS_OF_COMPARISON = 200
"""Each of several comparisons needs that many more subsets, so that five values are beyond each end."""
ALL_SUBSETS = 14
ROUNDING = 9
"""Decimal places: sums in another order must not make an exact tie a difference."""


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % interval; without one if there are too few texts."""

    value: float
    low: float | None
    high: float | None

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def least_texts(comparisons: int = 1) -> int:
    """Minimum number of texts for an interval of each of several comparisons: by chance, n texts all change in the same direction with
    probability 2^(1 - n)."""
    return math.ceil(1 + math.log2(comparisons / ERROR))


LEAST_TEXTS = least_texts()


def draw_subsets(texts: int, comparisons: int = 1) -> Array:
    """Subsets [subsets, texts] of 1 (in) and 0 (out), without the empty one: all, or random ones, enough for that many comparisons."""
    if texts <= ALL_SUBSETS:
        return ((np.arange(1, 2**texts)[:, None] >> np.arange(texts)) & 1).astype(np.float64)
    count = max(SUBSETS, SUBSETS_OF_COMPARISON * comparisons)
    drawn = np.random.default_rng(SEED).integers(2, size=(count, texts)).astype(np.float64)
    return drawn[drawn.any(axis=1)]


def find_interval(value: float, of_subsets: Array, comparisons: int = 1) -> Interval:
    """The interval of a difference that is `value` over all texts, and `of_subsets` [subsets] over subsets by `draw_subsets`."""
    beyond = math.floor(ERROR / comparisons / 2 * (len(of_subsets) + 1) + 1e-9)
    if beyond < 1:
        return Interval(value, None, None)
    lowest, highest = np.partition(of_subsets, (beyond - 1, -beyond))[[beyond - 1, -beyond]]
    width = max(value - float(lowest), float(highest) - value)
    low, high = (round(end, ROUNDING) for end in (value - width, value + width))
    return Interval(value, low, high)
