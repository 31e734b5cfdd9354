"""How often comparisons of voices are wrong: false verdicts about equal voices, coverage of intervals, in simulated evaluations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from overtone.recipes.speech.evaluation import confidence_intervals
from overtone.recipes.speech.evaluation.confidence_intervals import Array, Interval, least_texts
from overtone.recipes.speech.selection import candidate_ranking
from overtone.recipes.speech.selection.candidate_ranking import DEFAULT_WEIGHTS, ENDINGS, PACE, SIMILARITY, WER, count_pairs
from workshop.benchmarks import _table

Chance = np.random.Generator
Voices = Callable[[Chance, int], Array]
"""(chance, texts) → parts [voices, texts, 2]: numerators and denominators."""
TEXTS = (6, 12, 24, 48)
CANDIDATES = (2, 4, 8, 9)
RUNAWAYS = 0.02
RESAMPLINGS = 2000
COLUMNS = ("comparison", "texts", "wrong, bootstrap", "wrong", "wrong front, bootstrap", "wrong front")
NOTE = (
    "Wrong, in percent of simulated evaluations; 5 is promised. Equal voices: one is called better or worse than another. Different "
    "voices: the 95 % interval misses the true difference. Selections: at least one of the equal candidates is called worse; front: at "
    "least one is not on it. Bootstrap: percentiles of 2,000 bootstrap samples of the texts, without regard to the number of "
    "candidates, as before. –: with so few texts there is no verdict. WER: texts of 2 to 15 words, some harder than others; in 2 % of "
    "the texts of each voice all words are wrong (runaways). Similarity: its mean differs from text to text; runaways have one of about "
    "0. One runs away: only one of two otherwise equal voices does, in 2 % of its texts; in most evaluations of few texts, it never "
    "does, and no method can know that it would. Pairs: 600 evaluations, standard error 0.9 at 5 %; selections: 60, standard error "
    "2.8."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    trials, runs = (100, 10) if flags.quick else (600, 60)
    rows = [measure_pair(name, voices, difference, texts, trials) for name, voices, difference in pairs() for texts in TEXTS]
    rows += [measure_selection(count, texts, runs) for count in CANDIDATES for texts in TEXTS]
    _table.publish("comparison_errors", flags, COLUMNS, rows, NOTE)


def pairs() -> Iterator[tuple[str, Voices, float]]:
    """(name, two voices, true difference of the first and the second)."""
    usual = 1 - RUNAWAYS
    yield "WER 8 and 8 %", lambda chance, texts: wrong_words(chance, texts, [0.08, 0.08]), 0.0
    yield "WER 8 and 8 %, runaways", lambda chance, texts: wrong_words(chance, texts, [0.08, 0.08], RUNAWAYS), 0.0
    yield "WER 5 and 12 %", lambda chance, texts: wrong_words(chance, texts, [0.05, 0.12]), -0.07
    yield "WER 5 and 12 %, runaways", lambda chance, texts: wrong_words(chance, texts, [0.05, 0.12], RUNAWAYS), -0.07 * usual
    yield "WER 5 and 5 %, one runs away", lambda chance, texts: wrong_words(chance, texts, [0.05, 0.05], [0, RUNAWAYS]), -RUNAWAYS * 0.95
    yield "similarity 0.6 and 0.6", lambda chance, texts: cosines(chance, texts, [0.6, 0.6], 0), 0.0
    yield "similarity 0.6 and 0.6, runaways", lambda chance, texts: cosines(chance, texts, [0.6, 0.6], RUNAWAYS), 0.0
    yield "similarity 0.6 and 0.65, runaways", lambda chance, texts: cosines(chance, texts, [0.6, 0.65], RUNAWAYS), -0.05 * usual


def wrong_words(chance: Chance, texts: int, rates: list[float], runaways: float | list[float] = 0.0) -> Array:
    """Wrong words and words [voices, texts, 2]. A text is up to 2.5 times as hard as the mean."""
    words, hard = chance.integers(2, 16, texts), 2.5 * chance.beta(1.2, 1.8, texts)
    wrong = chance.binomial(words, np.array(rates)[:, None] * hard).astype(float)
    lost = chance.random(wrong.shape) < np.broadcast_to(np.reshape(runaways, (-1, 1)), wrong.shape)
    return np.stack([np.where(lost, words, wrong), np.broadcast_to(words, wrong.shape)], axis=-1)


def cosines(chance: Chance, texts: int, means: list[float], runaways: float) -> Array:
    """Similarities and ones [voices, texts, 2]."""
    found = np.array(means)[:, None] + 0.06 * chance.normal(size=texts) + 0.07 * chance.normal(size=(len(means), texts))
    found = np.where(chance.random(found.shape) < runaways, 0.05 * chance.normal(size=found.shape), found)
    return np.stack([found, np.ones_like(found)], axis=-1)


def measure_pair(name: str, voices: Voices, difference: float, texts: int, trials: int) -> list[object]:
    chance, wrong = np.random.default_rng(texts), {"before": 0, "now": 0}
    for _ in range(trials):
        one, other = voices(chance, texts)
        for way, found in (("before", bootstrap_pair(one, other)), ("now", compare_pair(one, other))):
            wrong[way] += found.low is not None and found.high is not None and not found.low - 1e-9 <= difference <= found.high + 1e-9
    return [name, texts, *(f"{100 * count / trials:.1f}" for count in wrong.values()), "", ""]


def compare_pair(one: Array, other: Array) -> Interval:
    """The interval that `paired_difference` gives."""
    subsets = confidence_intervals.draw_subsets(len(one))
    return confidence_intervals.find_interval(change_of(one.sum(axis=0), other.sum(axis=0)), change_of(subsets @ one, subsets @ other))


def bootstrap_pair(one: Array, other: Array) -> Interval:
    drawn = draw_bootstrap(len(one))
    return find_percentiles(change_of(one.sum(axis=0), other.sum(axis=0)), change_of(drawn @ one, drawn @ other))


def change_of(one: Array, other: Array) -> Array:
    return np.asarray(one[..., 0] / one[..., 1] - other[..., 0] / other[..., 1])


def draw_bootstrap(texts: int, comparisons: int = 1) -> Array:
    """How often each text is in each bootstrap sample: [samples, texts]."""
    return np.random.default_rng(comparisons).multinomial(texts, np.full(texts, 1 / texts), RESAMPLINGS).astype(float)


def find_percentiles(value: float, of_samples: Array, _comparisons: int = 1) -> Interval:
    low, high = np.round(np.percentile(of_samples, (2.5, 97.5)), confidence_intervals.ROUNDING)
    return Interval(value, float(low), float(high))


def measure_selection(count: int, texts: int, runs: int) -> list[object]:
    """A row: selections among equal candidates by WER and similarity, both with runaways."""
    chance, names = np.random.default_rng(100 * count + texts), [str(number) for number in range(count)]
    weights = {**DEFAULT_WEIGHTS, PACE: 0.0, ENDINGS: 0.0}
    worse, off_front = {"before": 0, "now": 0}, {"before": 0, "now": 0}
    for _ in range(runs):
        parts = np.zeros((count, texts, len(DEFAULT_WEIGHTS), 2))
        parts[:, :, [*DEFAULT_WEIGHTS].index(WER)] = wrong_words(chance, texts, [0.08] * count, RUNAWAYS)
        parts[:, :, [*DEFAULT_WEIGHTS].index(SIMILARITY)] = cosines(chance, texts, [0.6] * count, RUNAWAYS)
        for way in worse:
            with use_bootstrap() if way == "before" else ExitStack():
                found = candidate_ranking.decide(dict(zip(names, parts, strict=True)), weights, names)
            worse[way] += len(found.tied) < count
            off_front[way] += len(found.front) < count
    no_verdict = texts < least_texts(count_pairs(count))
    shown = [f"{100 * number / runs:.1f}" for way in (worse, off_front) for number in way.values()]
    return [f"selection among {count}", texts, shown[0], "–" if no_verdict else shown[1], shown[2], "–" if no_verdict else shown[3]]


@contextmanager
def use_bootstrap() -> Iterator[None]:
    with (
        mock.patch.object(candidate_ranking, "draw_subsets", draw_bootstrap),
        mock.patch.object(candidate_ranking, "find_interval", find_percentiles),
    ):
        yield


if __name__ == "__main__":
    main()
