"""Counts of seeded trials add up over runs, and a repeated seed is counted once."""

from __future__ import annotations

from pathlib import Path

import pytest

from workshop.benchmarks._seeded_trials import KINDS, RECIPES, count_weight, iterate_outcomes
from workshop.benchmarks._trial_counts import TrialCount, format_rows, read_counts, write_counts


def test_a_seed_is_counted_once_and_its_failure_is_the_last_one(tmp_path: Path) -> None:
    count = TrialCount()
    for seed in (3, 0, 1, 7, 2):
        count.add(seed, "refused")
    count.add(9, "failed", "KeyError: 'a'")
    assert count.seeds == [(0, 3), (7, 7), (9, 9)] and count.trials == 6 == count.weight and count.next_seed == 10
    assert count.failures == {9: "KeyError: 'a'"} and count.outcomes == {"refused": 5, "failed": 1}
    count.add(9, "refused")
    count.add(9, "refused")
    assert not count.failures and count.trials == 6 and count.outcomes == {"refused": 6}
    write_counts(tmp_path / "counts.json", {"rows": {"csm": count}})
    again = read_counts(tmp_path / "counts.json")
    assert again == {"rows": {"csm": count}} and read_counts(tmp_path / "none.json") == {}
    again["rows"]["csm"].add(8, "failed", "OSError: x")
    [row] = format_rows(again, {"rows": "a row", "kills": "a kill"})
    assert row == ["a row", 7, 1, "csm: 1 failed, 6 refused (seeds 0–3, 7–9)"]


def test_outcomes_that_differ_only_in_numbers_are_added_up() -> None:
    count = TrialCount()
    for seed, outcome in enumerate(["runs with 2 kills, 1 inside a save"] * 2 + ["runs with 3 kills, 0 inside a save"]):
        count.add(seed, outcome)
    [row] = format_rows({"kills": {"csm": count}}, {"kills": "a kill"})
    assert row[-1] == "csm: 3 runs with 7 kills, 2 inside a save (seeds 0–2)"


def test_a_broken_promise_is_an_outcome_with_its_reason() -> None:
    def trial(seed: int) -> str:
        assert seed != 1, "it went wrong"
        return "read"

    outcomes = list(iterate_outcomes(trial, iter(range(3))))
    assert outcomes[0] == (0, "read", None) and outcomes[2] == (2, "read", None)
    assert outcomes[1][:2] == (1, "failed") and "AssertionError: it went wrong" in str(outcomes[1][2])
    assert count_weight("kills", "runs with 3 kills, 1 inside a save") == 3 and count_weight("rows", "read") == 1


@pytest.mark.parametrize("kind", ["rows", "configs"])
def test_a_seed_repeats_its_trial(kind: str, tmp_path: Path) -> None:
    trial = KINDS[kind].prepare("byte_model", tmp_path)
    first = [outcome for _, outcome, failure in iterate_outcomes(trial, iter(range(12))) if failure is None]
    assert len(first) == 12 and "refused" in first
    assert [trial(seed) for seed in range(12)] == first


def test_every_recipe_is_tried() -> None:
    assert len(KINDS) == 7 and len(RECIPES) == 6
    assert all(set(kind.subjects) <= set(RECIPES) for name, kind in KINDS.items() if name != "sounds")
