"""Every strategy holds what docs/parallelism.md says it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from workshop.benchmarks.strategy_bytes import cases, lasting_formula, measured, passing_formula


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_measured_bytes_match_the_formula(tmp_path: Path) -> None:
    """What lasts within 1 %, what passes within 10 %, on every rank of 1, 2 and 4."""
    found = measured(tmp_path, [1, 2, 4])
    assert len(found) == 3 * len(cases()) - 4, "hsdp, and halves of matrices, need two ranks"
    for each in found:
        assert len(each["each"]) == each["ranks"]
        for counts in each["each"]:
            assert sum(counts[:3]) == pytest.approx(lasting_formula(each), rel=0.01), each
            assert sum(counts[3:]) == pytest.approx(passing_formula(each), rel=0.10), each
