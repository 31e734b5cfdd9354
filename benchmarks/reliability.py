"""What is promised of saving, resuming, stopping and exporting, each promise tried over and over by the tests in tests/reliability/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _table

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("promise", "trials", "failures", "worst value, or extent")
TESTS = "tests/reliability"
QUICK = (f"{TESTS}/test_corruption.py", f"{TESTS}/test_golden.py")
NOTE = (
    "One run of all trials, on tiny models and CPUs; kills and damage fall at random, seeded by the clock. A trial that goes wrong is a "
    "row of its own, named by its test. Bit by bit means equal digests of every tensor, equal losses and gradient norms."
)


def main() -> int:
    flags = _table.read_flags(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        failed = try_all(Path(folder), QUICK if flags.quick else (TESTS,))
        rows = [*promises(Path(folder) / "ledger.jsonl"), *([name, 1, 1, "failed"] for name in failed)]
    _table.publish("reliability", flags, COLUMNS, rows, NOTE)
    return 1 if failed else 0


def try_all(folder: Path, tests: tuple[str, ...]) -> list[str]:
    """Run these tests, slow ones too; each leaves its lines in `folder`. Returns the names of those that failed."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", *tests, "-m", "slow or not slow", "-q", f"--junitxml={report}"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "OVERTONE_LEDGER": str(folder)}, stdout=sys.stderr)
    cases = ElementTree.parse(report).iter("testcase")
    return [f"{case.get('classname')}::{case.get('name')}" for case in cases if {part.tag for part in case} & {"failure", "error"}]


def promises(ledger: Path) -> list[list[object]]:
    """One row a promise, however many tests tried it."""
    found: dict[str, dict[str, Any]] = {}
    for line in ledger.read_text().splitlines():
        entry = json.loads(line)
        row = found.setdefault(entry["promise"], {"trials": 0, "failures": 0, "worst": ""})
        row["trials"] += entry["trials"]
        row["failures"] += entry["failures"]
        row["worst"] = entry["worst"] or row["worst"]
    return [[promise, *row.values()] for promise, row in found.items()]


if __name__ == "__main__":
    sys.exit(main())
