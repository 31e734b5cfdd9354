"""Checks that every benchmark still runs: each with --quick, in a process of its own. Lists those that failed, and those that cannot run
here.

usage: python workshop/benchmarks/_quick.py [NAME …]        exit code 1 if one has failed
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workshop.benchmarks._table import SKIPPED

HERE = Path(__file__).resolve().parent
LIMIT = 600.0
"""Seconds. A quick run takes about one minute of a processor, and a busy machine may give it a fraction of one."""
SHOWN = 25
"""Last lines of what a failed benchmark has printed."""


class Outcome(NamedTuple):
    """Result of one benchmark."""

    name: str
    kind: str
    """passed, skipped or failed."""
    seconds: float
    detail: str
    """The reason why it was skipped, or the end of its output."""


def main(words: Sequence[str]) -> int:
    known = find_benchmarks(HERE)
    if unknown := [name for name in words if name not in known]:
        print(f"{', '.join(unknown)}: no such benchmark; there are {', '.join(known)}")
        return 2
    outcomes = []
    for name in words or known:
        print(f"{name} …", end=" ", flush=True)
        outcomes.append(run_quick(HERE / f"{name}.py", LIMIT))
        print(describe(outcomes[-1]), flush=True)
    print(f"\n{summarize(outcomes)}")
    return 1 if any(outcome.kind == "failed" for outcome in outcomes) else 0


def find_benchmarks(folder: Path) -> list[str]:
    """Names of the benchmarks; files whose names begin with an underscore are their parts."""
    return sorted(path.stem for path in folder.glob("[a-z]*.py"))


def run_quick(script: Path, limit: float) -> Outcome:
    """Run one benchmark. One that writes no table must print why, after `SKIPPED`."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        code, lines = run_limited([sys.executable, str(script), "--quick", "--to", folder], Path(folder), limit)
        has_table = (Path(folder) / f"{script.stem}.md").is_file()
    seconds = time.monotonic() - began
    if code == 0 and has_table:
        return Outcome(script.stem, "passed", seconds, "")
    reasons = [line.removeprefix(SKIPPED) for line in lines if line.startswith(SKIPPED)]
    if code == 0 and reasons:
        return Outcome(script.stem, "skipped", seconds, reasons[-1])
    problem = f"it wrote no {script.stem}.md and printed no reason" if code == 0 else f"exit code {code}"
    problem = f"not finished after {limit:g} s" if code is None else problem
    return Outcome(script.stem, "failed", seconds, "\n".join([problem, *lines[-SHOWN:]]))


def run_limited(command: Sequence[str], folder: Path, limit: float) -> tuple[int | None, list[str]]:
    """Run a command in `folder`; returns its exit code, None if it took more than `limit` seconds, and the lines that it printed. Whatever
    it started and left running is killed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read().splitlines()


def environment() -> Mapping[str, str]:
    """One thread for each of the processes that a benchmark starts, and no downloads."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def describe(outcome: Outcome) -> str:
    """One line, and below it the output of a failed benchmark."""
    return f"{outcome.kind}, {outcome.seconds:.0f} s{f': {outcome.detail}' if outcome.detail else ''}"


def summarize(outcomes: Sequence[Outcome]) -> str:
    """The number of benchmarks that passed, then the others by name."""
    lines = [f"{sum(outcome.kind == 'passed' for outcome in outcomes)} of {len(outcomes)} benchmarks passed"]
    lines += [f"skipped: {name}: {detail}" for name, kind, _, detail in outcomes if kind == "skipped"]
    lines += [f"failed: {name}: {detail.splitlines()[0]}" for name, kind, _, detail in outcomes if kind == "failed"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
