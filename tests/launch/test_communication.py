"""What ranks send each other is what the simulation of a step says: bytes and collectives, for every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workshop.benchmarks.communication import CASES, QUICK, measure_ranks


def check(found: list[dict[str, Any]]) -> None:
    for each in found:
        simulated, hops = each["simulated"]
        assert each["bytes"] == pytest.approx(simulated, rel=0.01, abs=1), each
        assert each["hops"] == round(hops), each
        if each["strategy"] == "fsdp" and each["ranks"] > 1:
            assert each["volume"] == pytest.approx(3 * each["turns"], rel=0.02), "3 Ψ for each micro-batch, as ZeRO's authors count"


@pytest.mark.slow
def test_two_ranks_send_the_simulated_bytes(tmp_path: Path) -> None:
    found = measure_ranks(tmp_path, [2], QUICK)
    assert [each["strategy"] for each in found] == ["zero1", "fsdp × tp 2", "fsdp"]
    assert min(each["turns"] for each in found) > 1 and min(sum(each["kinds"].values()) for each in found) > 0
    check(found)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_two_and_four_ranks_send_the_simulated_bytes(tmp_path: Path) -> None:
    found = measure_ranks(tmp_path, [1, 2, 4], CASES)
    assert len(found) == 3 * len(CASES) - 2, "hsdp, and halves of matrices, need two ranks"
    assert all(sum(each["kinds"].values()) == 0 for each in found if each["ranks"] == 1)
    check(found)
