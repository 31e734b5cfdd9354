"""What was tried and what failed: a line of JSON a promise, in the folder that OVERTONE_LEDGER names (workshop/benchmarks/_trials.py)."""

from __future__ import annotations

import json
import os
from pathlib import Path

VARIABLE = "OVERTONE_LEDGER"


def record(promise: str, trials: int, failures: int = 0, worst: str = "") -> None:
    """Write the line, and fail if the promise was broken, or not tried at all."""
    if folder := os.environ.get(VARIABLE):
        line = json.dumps({"promise": promise, "trials": trials, "failures": failures, "worst": worst})
        with (Path(folder) / "ledger.jsonl").open("a") as file:
            file.write(line + "\n")
    assert trials > 0 and failures == 0, f"{promise}: {failures} of {trials} failed, worst {worst}"
