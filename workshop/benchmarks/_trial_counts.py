"""Counts of trials with recorded seeds, which add up over several runs: a JSON file, and its rows in a table.

A seed decides all that a trial does, so the same seed repeats it. A seed that has been tried already is not counted again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overtone.finetune.storage import files, strict_json


@dataclass
class TrialCount:
    """Results of the trials of one kind with one subject."""

    seeds: list[tuple[int, int]] = field(default_factory=list)
    """Ranges that were tried: first and last."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """In how many trials each outcome was seen."""
    failures: dict[int, str] = field(default_factory=dict)
    """Seed → what went wrong the last time."""
    weight: int = 0
    """Number of actions in all of them, where a trial does several, such as kills."""

    @property
    def trials(self) -> int:
        return sum(last - first + 1 for first, last in self.seeds)

    @property
    def next_seed(self) -> int:
        return max((last + 1 for _, last in self.seeds), default=0)

    def has(self, seed: int) -> bool:
        return any(first <= seed <= last for first, last in self.seeds)

    def add(self, seed: int, outcome: str, failure: str | None = None, weight: int = 1) -> None:
        """Record a trial. One of a known seed replaces that seed's failure by its new outcome, and adds nothing else."""
        if self.failures.pop(seed, None) is not None:
            self.outcomes -= Counter(["failed"])
            self.outcomes[outcome] += 1
        if failure is not None:
            self.failures[seed] = failure
        if self.has(seed):
            return
        self.outcomes[outcome] += 1
        self.weight += weight
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*self.seeds, (seed, seed)]):
            if merged and merged[-1][1] + 1 == first:
                merged[-1] = (merged[-1][0], last)
            else:
                merged.append((first, last))
        self.seeds = merged


Counts = dict[str, dict[str, TrialCount]]
"""Kind of trial → subject, such as a recipe → its count."""


def read_counts(path: Path) -> Counts:
    """The counts in a file; none if it does not exist."""
    stored: dict[str, Any] = strict_json.read_object(path) if path.is_file() else {}
    return {kind: {subject: _parse(count) for subject, count in subjects.items()} for kind, subjects in stored.items()}


def _parse(stored: dict[str, Any]) -> TrialCount:
    return TrialCount(
        [(first, last) for first, last in stored["seeds"]],
        Counter(stored["outcomes"]),
        {int(seed): problem for seed, problem in stored["failures"].items()},
        stored["weight"],
    )


def write_counts(path: Path, counts: Counts) -> None:
    files.write_json(
        path,
        {
            kind: {
                subject: {
                    "seeds": count.seeds,
                    "outcomes": dict(sorted(count.outcomes.items())),
                    "failures": {str(seed): problem for seed, problem in sorted(count.failures.items())},
                    "weight": count.weight,
                }
                for subject, count in sorted(subjects.items())
            }
            for kind, subjects in sorted(counts.items())
        },
    )


def format_rows(counts: Counts, promises: dict[str, str]) -> list[list[object]]:
    """A row of the table for each kind: promise, trials, failures, and the outcomes of each subject."""
    rows: list[list[object]] = []
    for kind, promise in promises.items():
        if subjects := counts.get(kind):
            extent = "; ".join(f"{subject}: {_describe(count)}" for subject, count in sorted(subjects.items()))
            rows.append([promise, sum(c.weight for c in subjects.values()), sum(len(c.failures) for c in subjects.values()), extent])
    return rows


def _describe(count: TrialCount) -> str:
    outcomes = ", ".join(_add_up(count.outcomes))
    seeds = ", ".join(f"{first}–{last}" for first, last in count.seeds)
    return f"{outcomes} (seeds {seeds})"


def _add_up(outcomes: Counter[str]) -> Iterator[str]:
    """Outcomes with their numbers; those that differ only in numbers ("runs with 2 kills", "runs with 3 kills") are one, with the sums."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for outcome, trials in outcomes.items():
        words, numbers = re.split(r"\d+", outcome), [trials * int(number) for number in re.findall(r"\d+", outcome)]
        before = sums.get(tuple(words), [0] * (1 + len(numbers)))
        sums[tuple(words)] = [old + new for old, new in zip(before, [trials, *numbers], strict=True)]
    for words, (trials, *numbers) in sorted(sums.items()):
        yield f"{trials:,} {words[0]}" + "".join(f"{number:,}{word}" for number, word in zip(numbers, words[1:], strict=True))
