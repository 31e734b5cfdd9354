"""Tests as measurements: each promise that they record in the ledger becomes a row, with how often it was tried and what was worst."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from workshop.benchmarks import _table

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("promise", "trials", "failures", "worst value, or extent")


def measure(name: str, flags: _table.Flags, tests: Sequence[str], note: str) -> int:
    """Run the tests and publish their table as `name`; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        failed = try_all(Path(folder), tests)
        rows = [*promises(Path(folder) / "ledger.jsonl"), *([name, 1, 1, "failed"] for name in failed)]
    _table.publish(name, flags, COLUMNS, rows, note)
    return 1 if failed else 0


def try_all(folder: Path, tests: Sequence[str]) -> list[str]:
    """Run these tests, slow ones too; each leaves its lines in `folder`. Returns the names of those that failed."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", *tests, "-m", "slow or not slow", "-q", f"--junitxml={report}"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins deaf to it, and so would its tests
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
