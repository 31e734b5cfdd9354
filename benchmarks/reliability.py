"""The guarantees of saving, resuming, stopping and exporting, each checked many times by the tests in tests/reliability/."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _table, _trials

TESTS = "tests/reliability"
QUICK = (f"{TESTS}/test_corruption.py", f"{TESTS}/test_golden.py")
NOTE = (
    "One run of all trials, on tiny models and CPUs; kills and damage fall at random, seeded by the clock. A trial that goes wrong is a "
    "row of its own, named by its test. Bit by bit means equal digests of every tensor, equal losses and gradient norms."
)


def main() -> int:
    flags = _table.read_flags(__doc__)
    return _trials.measure("reliability", flags, QUICK if flags.quick else (TESTS,), NOTE)


if __name__ == "__main__":
    sys.exit(main())
