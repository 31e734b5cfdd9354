"""The ledger takes what was tried and refuses what was not; the page of proofs states what its table says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import ledger
from tests.launch.launching import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ledger.VARIABLE, str(tmp_path))
    return tmp_path


def test_each_promise_is_one_line(folder: Path) -> None:
    ledger.record("kept", 3, worst="0.1 s")
    ledger.record("kept too", 1)
    first, _ = map(json.loads, (folder / "ledger.jsonl").read_text().splitlines())
    assert first == {"promise": "kept", "trials": 3, "failures": 0, "worst": "0.1 s"}


def test_a_broken_promise_is_written_down_and_fails(folder: Path) -> None:
    with pytest.raises(AssertionError, match="kept: 1 of 3 failed, worst 9 s"):
        ledger.record("kept", 3, 1, "9 s")
    assert json.loads((folder / "ledger.jsonl").read_text())["failures"] == 1


def test_a_promise_without_trials_fails(folder: Path) -> None:
    with pytest.raises(AssertionError):
        ledger.record("kept", 0)


def test_the_page_of_proofs_states_what_the_table_says() -> None:
    table = (ROOT / "workshop" / "benchmarks" / "results" / "reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (\d+) \| (\d+) \| .* \|$", table, flags=re.MULTILINE)
    assert len(rows) >= 12
    link = r"no failure in more than ([\d,]+) trials\]\(\.\./benchmarks/results/reliability\.md\)"
    stated = re.search(link, (ROOT / "workshop" / "lab_book" / "proofs.md").read_text(encoding="utf-8"))
    assert stated and sum(int(trials) for trials, _ in rows) > int(stated[1].replace(",", ""))
    assert all(failures == "0" for _, failures in rows)
