"""A ratio that became worse is reported, noise is not, and each watched figure exists."""

from __future__ import annotations

import pytest

from workshop.benchmarks._regressions import HERE, LESS, WATCHED, number, regressions, rows_of, steady
from workshop.tests.benchmarks.test_benchmarks import COLUMNS


def overhead(*ratios: float, ranks: int = 1) -> list[dict[str, str]]:
    return [{"model": "nano", "clips × frames": "4 × 50", "ranks": str(ranks), "our step / bare loop": f"{ratio:.2f}"} for ratio in ratios]


def gain(*ratios: float) -> list[dict[str, str]]:
    return [{"model": "nano", "at once": "1 call", "loop / at once": f"{ratio:.1f}"} for ratio in ratios]


def test_only_a_worse_ratio_is_reported() -> None:
    assert regressions("step_overhead", overhead(1.6, 1.2), overhead(1.9, 1.6)) == [
        "step_overhead, nano, 4 × 50: our step / bare loop is 1.6, 1.2 is committed"
    ]
    assert regressions("sub_talker", gain(12.0, 4.0), gain(9.0, 9.0)) == ["sub_talker, nano, 1 call: loop / at once is 9, 12 is committed"]
    assert regressions("step_overhead", overhead(1.6, 0.01), overhead(1.99, 0.03)) == []
    assert regressions("sub_talker", gain(12.0, 4.0), gain(9.7, 40.0)) == []


def test_ratios_of_several_ranks_are_not_compared() -> None:
    assert regressions("step_overhead", overhead(1.6) + overhead(1.6, ranks=2), overhead(1.6) + overhead(9.9, ranks=2)) == []


def test_a_table_with_other_rows_is_reported() -> None:
    assert regressions("step_overhead", overhead(1.6, 1.2), overhead(1.6)) == [
        "step_overhead: 1 rows, but 2 are committed; run it and commit its table"
    ]


@pytest.mark.parametrize("name", WATCHED)
def test_watched_columns_are_in_the_committed_table(name: str) -> None:
    column, _ = WATCHED[name]
    committed = steady(rows_of(HERE / "results" / f"{name}.md"))
    assert column in COLUMNS[name] and len(committed) >= 3
    assert all(number(row[column]) > 0 for row in committed) and regressions(name, committed, committed) == []
    worse = [
        {**row, column: f"{number(row[column]) * (2 if WATCHED[name][1] is LESS else 0.5) + 0.1 * (WATCHED[name][1] is LESS):g}"}
        for row in committed
    ]
    assert len(regressions(name, committed, worse)) == len(committed)
