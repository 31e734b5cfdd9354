"""Tests of `overtone.recipes.speech.selection.candidate_ranking` on known numbers: costs, ties, and the front."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from overtone.recipes.speech.evaluation.confidence_intervals import Array, Interval
from overtone.recipes.speech.selection.candidate_ranking import (
    DEFAULT_WEIGHTS,
    ENDINGS,
    PACE,
    WER,
    cost_of,
    decide,
    keep_common,
    losses_of,
    values_of,
)

WEIGHTS = np.array([*DEFAULT_WEIGHTS.values()])


def voice(
    wrong: float | Sequence[float], like: float | Sequence[float], pace: float = 1.0, bad: float | Sequence[float] = 0.0, texts: int = 12
) -> Array:
    """Parts of texts of ten words and two seconds; numbers stand for all texts."""
    made = np.zeros((texts, 4, 2))
    made[:, :, 1] = [10, 1, 2, 1]
    made[:, 0, 0], made[:, 1, 0], made[:, 2, 0], made[:, 3, 0] = wrong, like, 2 * pace, bad
    return made


def test_a_cost_is_the_weighted_sum_of_the_losses() -> None:
    sums = voice(1, 0.7, pace=1.1, bad=[1, 0, 0, 0] * 3).sum(axis=0)
    assert values_of(sums).tolist() == pytest.approx([0.1, 0.7, 1.1, 0.25])
    assert losses_of(values_of(sums)).tolist() == pytest.approx([0.1, 0.3, math.log(1.1), 0.25])
    assert cost_of(sums, WEIGHTS) == pytest.approx(0.1 + 0.3 + 0.25 * math.log(1.1) + 0.5 * 0.25)
    slow, fast = (cost_of(voice(0, 1, pace=pace).sum(axis=0), WEIGHTS) for pace in (0.5, 2.0))
    assert slow == pytest.approx(fast) == pytest.approx(0.25 * math.log(2))


def test_a_value_that_nobody_could_measure_is_the_worst() -> None:
    """Speech that never ends has no pace, which must not be an advantage."""
    endless = voice(1, 0.7, bad=1)
    endless[:, 2] = 0
    assert losses_of(values_of(endless.sum(axis=0))).tolist() == pytest.approx([0.1, 0.3, 1.0, 1.0])
    decision = decide({"endless": endless, "ended": voice(1, 0.7)}, DEFAULT_WEIGHTS, ["endless", "ended"])
    assert decision.chosen == "ended" and decision.rankings[1].values[PACE] is None


def test_the_front_leaves_out_what_another_is_clearly_better_than() -> None:
    parts = {
        "clear words": voice(0, 0.5),
        "right voice": voice(2, 0.9),
        "worse in both": voice(3, 0.4),
        "slower than the right voice": voice(2, 0.9, pace=0.8),
    }
    decision = decide(parts, DEFAULT_WEIGHTS, [*parts])
    assert decision.front == ["right voice", "clear words"] and decision.chosen == decision.best == "right voice"
    by_name = {one.name: one for one in decision.rankings}
    assert by_name["worse in both"].dominated_by == "right voice" and by_name["slower than the right voice"].dominated_by == "right voice"
    assert by_name["clear words"].against_best.value == pytest.approx(0.2) and not by_name["clear words"].tied
    assert decision.tied == ["right voice"]
    words_first = decide(parts, {**DEFAULT_WEIGHTS, WER: 3.0}, [*parts])
    assert words_first.best == "clear words", "the weights decide between the two of the front"


def test_a_measure_of_weight_zero_does_not_count() -> None:
    parts = {"short": voice(0, 0.5, bad=1), "whole": voice(1, 0.5)}
    assert decide(parts, {**DEFAULT_WEIGHTS, ENDINGS: 0.0}, [*parts]).best == "short"
    assert decide(parts, DEFAULT_WEIGHTS, [*parts]).best == "whole"


def test_a_tie_is_called_a_tie_and_the_simplest_is_chosen() -> None:
    """The better one wins on seven texts and loses on five: by chance, in one of three such comparisons."""
    parts = {"simple": voice([1] * 7 + [0] * 5, 0.7), "trained": voice([0] * 7 + [1] * 5, 0.7), "bad": voice(6, 0.7)}
    decision = decide(parts, DEFAULT_WEIGHTS, ["simple", "trained", "bad"])
    assert decision.best == "trained" and decision.tied == ["trained", "simple"] and decision.chosen == "simple"
    simple = decision.rankings[1].against_best
    assert simple.value == pytest.approx(2 / 120) and simple.low is not None and simple.low < 0 and not simple.is_clear
    assert decide(parts, DEFAULT_WEIGHTS, ["trained", "simple", "bad"]).chosen == "trained"


def test_equal_candidates_are_tied() -> None:
    parts = {"late": voice(1, 0.7), "early": voice(1, 0.7)}
    decision = decide(parts, DEFAULT_WEIGHTS, ["early", "late"])
    assert decision.tied == ["early", "late"] == decision.front and decision.chosen == "early"


def test_a_tied_candidate_that_is_clearly_worse_in_one_measure_is_not_chosen() -> None:
    """Its cost is tied because of noise in the words; but its similarity is lower on every text."""
    noise = [4, 0] * 6
    parts = {"simple": voice(noise, 0.65), "best": voice(noise[::-1], 0.7)}
    decision = decide(parts, DEFAULT_WEIGHTS, ["simple", "best"])
    assert decision.tied == ["best", "simple"] and decision.front == ["best"] and decision.chosen == "best"


def test_differences_are_paired() -> None:
    """The texts differ much more than the candidates: only the same texts show which one is better."""
    hard = np.array([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3])
    parts = {"one": voice(hard + 0.5, 0.7), "other": voice(hard, 0.7)}
    decision = decide(parts, DEFAULT_WEIGHTS, ["one", "other"])
    assert decision.tied == ["other"] and decision.rankings[1].against_best.is_clear


def test_equal_candidates_are_called_worse_in_at_most_5_percent_of_selections() -> None:
    """Four equal candidates, 12 texts: percentiles of a bootstrap, without regard to their number, called one worse in a third of these."""
    chance, names, wrongly, off_front = np.random.default_rng(7), ["a", "b", "c", "d"], 0, 0
    for _ in range(60):
        hard = chance.random(12)
        decision = decide({name: voice(chance.binomial(10, 0.3 * hard), 0.7) for name in names}, DEFAULT_WEIGHTS, names)
        wrongly += len(decision.tied) < len(names)
        off_front += len(decision.front) < len(names)
    assert wrongly <= 7 and off_front <= 7, "by chance 3 of 60; more than 7 have a probability of 2 %"


def test_pairs_of_candidates_share_the_error() -> None:
    """A difference that is clear between two candidates is not clear among nine."""
    chance = np.random.default_rng(2)
    parts = {str(at): voice(chance.permutation(np.tile(np.arange(4.0), 6)) + 2, 0.7, texts=24) for at in range(9)}
    parts["8"][:, 0, 0] += 1
    pair = decide({name: parts[name] for name in ("0", "8")}, DEFAULT_WEIGHTS, ["0", "8"]).rankings[1].against_best
    decision = decide(parts, DEFAULT_WEIGHTS, [*parts])
    among = next(one for one in decision.rankings if one.name == "8").against_best
    assert decision.best == "0" and pair.value == among.value == pytest.approx(0.1)
    assert pair.is_clear and not among.is_clear
    assert pair.low is not None and among.low is not None and among.value - among.low > 1.3 * (pair.value - pair.low)


def test_with_too_few_texts_for_the_number_of_candidates_the_lowest_cost_is_chosen() -> None:
    parts = {str(wrong): voice(wrong, 0.7, texts=6) for wrong in range(4)}
    decision = decide(parts, DEFAULT_WEIGHTS, [*parts][::-1])
    assert (decision.chosen, decision.tied, decision.front, decision.has_verdicts) == ("0", ["0"], [*parts], False)
    assert decision.rankings[3].against_best == Interval(pytest.approx(0.3), None, None)
    assert decide({name: parts[name] for name in "03"}, DEFAULT_WEIGHTS, ["0", "3"]).tied == ["0"]


def test_texts_without_a_value_count_for_neither() -> None:
    whole, gap = voice([5] + [1] * 11, 0.7), voice(1, 0.7)
    gap[0, 0] = 0  # the recogniser failed
    first, second = keep_common(whole, gap)
    assert first[0, 0].tolist() == second[0, 0].tolist() == [0, 0] and first[1:].tolist() == whole[1:].tolist()
    decision = decide({"whole": whole, "gap": gap}, DEFAULT_WEIGHTS, ["whole", "gap"])
    assert decision.tied == ["gap", "whole"], "the difference is in the text that one of them lacks"


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="5 texts are too few to choose by; give 6 or more"):
        decide({"one": voice(0, 1, texts=5)}, DEFAULT_WEIGHTS, ["one"])
