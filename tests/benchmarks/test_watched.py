"""A process whose work fails ends, though its memory was being looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(work: str) -> subprocess.CompletedProcess[str]:
    code = f"from benchmarks import _watched; _watched.tell(lambda: {work})"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_the_peak_is_above_what_stands_before() -> None:
    found = json.loads(run("[bytes(1000) for _ in range(100_000)]").stdout)
    assert found["above_imports"] > 50e6 and found["looks"] > 1


def test_a_failure_ends_the_process() -> None:
    assert run("1 / 0").returncode == 1
