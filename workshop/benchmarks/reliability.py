"""The guarantees of saving, resuming, stopping and exporting, each checked many times by tests and by seeded trials.

Without --kind, the tests run once, and their rows are replaced. With --kind, more trials of that kind run, each with a seed of its own, and
are added to results/reliability.json; the table shows the sum of all runs. A seed repeats its trial.

  workshop/benchmarks/reliability.py --kind rows --trials 1000               the next 1,000 seeds, of each recipe in turn
  workshop/benchmarks/reliability.py --kind kills --subject csm --minutes 20
  workshop/benchmarks/reliability.py --kind models --subject llm_sft --seed 17 --trials 1
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workshop.benchmarks import _table, _trial_counts, _trials

TESTS = "tests/reliability"
QUICK = (f"{TESTS}/test_corruption.py", f"{TESTS}/test_golden.py")
COUNTS = "reliability.json"
SAVE_SECONDS = 15.0
NOTE = (
    "Tiny models on CPUs. The rows of the tests come from one run of all of them; their kills and damage fall at random, seeded by the "
    "clock, and a test that fails is a row of its own. The rows that list seeds are sums over all runs of "
    "`workshop/benchmarks/reliability.py --kind KIND`; one of these seeds repeats its trial. "
    "Bit by bit means equal digests of every tensor, equal losses and gradient norms."
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="a small setting, to see that it runs; its figures say little")
    parser.add_argument("--to", type=Path, default=_table.RESULTS, metavar="FOLDER", help="where the table and the counts are written")
    parser.add_argument("--kind", metavar="KIND", help="run seeded trials of this kind, or of `all`, instead of the tests")
    parser.add_argument("--subject", help="only with this recipe, or this format of sounds")
    parser.add_argument("--trials", type=int, help="for each subject (default: what is missing to the goal)")
    parser.add_argument("--seed", type=int, help="the first seed (default: the next one that was not tried)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no trial after this time")
    given = parser.parse_args()
    flags = _table.Flags(given.quick, given.to)
    if given.kind is None:
        return run_tests(flags)
    return run_trials(flags, given)


def run_tests(flags: _table.Flags) -> int:
    """All tests once; their promises replace those of the run before."""
    with tempfile.TemporaryDirectory() as folder:
        failed = _trials.try_all(Path(folder), QUICK if flags.quick else (TESTS,))
        rows = [*_trials.promises(Path(folder) / "ledger.jsonl"), *([name, 1, 1, "failed"] for name in failed)]
    publish(flags, rows)
    return 1 if failed else 0


def run_trials(flags: _table.Flags, given: argparse.Namespace) -> int:
    """Trials of one kind or all, added to the counts. Returns 1 if one has failed."""
    from workshop.benchmarks._seeded_trials import KINDS

    end, failed = time.monotonic() + 60 * given.minutes, 0
    for name in KINDS if given.kind == "all" else [given.kind]:
        kind = KINDS[name]
        for subject in [given.subject] if given.subject else kind.subjects:
            count = _trial_counts.read_counts(flags.to / COUNTS).get(name, {}).get(subject, _trial_counts.TrialCount())
            missing = max(0, -(-(kind.goal // len(kind.subjects) - count.weight) // 1))
            first = count.next_seed if given.seed is None else given.seed
            number = missing if given.trials is None else given.trials
            failed += add_trials(flags.to / COUNTS, name, subject, range(first, first + number), end)
    publish(flags, read_test_rows(flags.to), is_whole=False)
    return 1 if failed else 0


def add_trials(counts: Path, kind: str, subject: str, seeds: range, end: float) -> int:
    """Run these seeds until the time is over, and save the counts every few seconds. Returns the number of failures."""
    from workshop.benchmarks import _seeded_trials

    failed, saved, found = 0, time.monotonic(), list[tuple[int, str, str | None]]()
    if not seeds or time.monotonic() > end:
        return 0
    print(f"{kind}, {subject}: seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        trial = _seeded_trials.KINDS[kind].prepare(subject, Path(folder) / subject)
        going_on = itertools.takewhile(lambda _: time.monotonic() < end, seeds)
        for seed, outcome, failure in _seeded_trials.iterate_outcomes(trial, going_on):
            found.append((seed, outcome, failure))
            if failure is not None:
                failed += 1
                print(f"{kind}, {subject}, seed {seed}: {failure}", flush=True)
            if time.monotonic() - saved > SAVE_SECONDS:
                save_outcomes(counts, kind, subject, found)
                saved = time.monotonic()
        save_outcomes(counts, kind, subject, found)
    return failed


def save_outcomes(path: Path, kind: str, subject: str, found: list[tuple[int, str, str | None]]) -> None:
    """Add outcomes to the file, and empty the list. The file is read again, since another run may have added its own."""
    from overtone.finetune.storage import files
    from workshop.benchmarks._seeded_trials import count_weight

    with files.hold_lock(path.with_suffix(".lock")):
        counts = _trial_counts.read_counts(path)
        count = counts.setdefault(kind, {}).setdefault(subject, _trial_counts.TrialCount())
        for seed, outcome, failure in found:
            count.add(seed, outcome, failure, count_weight(kind, outcome) if failure is None else 1)
        _trial_counts.write_counts(path, counts)
    found.clear()


def read_test_rows(folder: Path) -> list[list[object]]:
    """The rows of the tests in the table that is there."""
    from workshop.benchmarks._seeded_trials import KINDS

    path = folder / "reliability.md"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    promises = {kind.promise for kind in KINDS.values()}
    return [[*row, *[""] * (4 - len(row))] for row in rows if row[0] not in promises]


def publish(flags: _table.Flags, tests: list[list[object]], is_whole: bool = True) -> None:
    """Print and write the table: the promises of the tests, then the seeded trials. `is_whole`: whether the tests have just run."""
    from workshop.benchmarks._seeded_trials import KINDS

    counts = _trial_counts.read_counts(flags.to / COUNTS)
    rows = [*tests, *_trial_counts.format_rows(counts, {name: kind.promise for name, kind in KINDS.items()})]
    _table.publish("reliability", flags, _trials.COLUMNS, rows, NOTE, is_whole)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
