"""Trials of a blind comparison: two systems, or two clips of one, on random sides, one answer for each text, and what the answers show.

Each answer is a line of a JSONL file, written before the next trial is shown. A comparison that is started again with the same file skips
the texts that have an answer.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.strict_json import loads_object
from overtone.finetune.storage.text_lines import read_lines
from overtone.finetune.terminal import print_diagnostic

Choice = Literal["left", "right", "same"]
CHOICES: tuple[Choice, ...] = ("left", "right", "same")
SAME = "same"
"""Winner of a trial in which the listener preferred neither."""
REWARDS = ("higher reward", "lower reward")
"""Names of two clips of one model: by the judge of `overtone pairs`."""
SURE = 0.95
"""Confidence of the interval."""


@dataclass(frozen=True)
class Trial:
    """One text spoken by both systems."""

    key: str
    """Digest of the text, the systems and the sampling, which do not show in it."""
    text: str
    left: str
    right: str
    """Names of the systems."""
    clips: tuple[str, str] | None = None
    """Paths of the clips on the left and on the right, in a folder of `overtone pairs`; None for clips of two models."""

    def winner(self, choice: Choice) -> str:
        return {"left": self.left, "right": self.right, "same": SAME}[choice]


@dataclass(frozen=True)
class Preferences:
    """Result of the answers."""

    wins: Mapping[str, int]
    """System → number of answers that prefer it."""
    same: int
    share: float | None
    """Wins of the first system / answers with a preference; None without any."""
    low: float | None
    high: float | None
    """Its 95 % interval (Clopper and Pearson, Biometrika 1934), which is exact for a binomial."""
    chance: float | None
    """Probability of a result at least as one-sided if listeners only guessed (two-sided sign test)."""

    def describe(self) -> str:
        """One sentence, with the verdict."""
        (first, wins), (second, losses) = self.wins.items()
        counts = f"{first} was preferred {wins} times, {second} {losses} times, neither {self.same} times."
        if self.share is None or self.low is None or self.high is None or self.chance is None:
            return f"{counts} Without a preference there is no result."
        verdict = "no clear difference" if self.low <= 0.5 <= self.high else f"{first if self.share > 0.5 else second} is better"
        interval = f"{100 * self.share:.0f} % of the preferences for {first}, 95 % interval {100 * self.low:.0f} to {100 * self.high:.0f} %"
        return f"{counts} {interval}; by chance {self.chance:.2g}: {verdict}."


class AnsweredError(Exception):
    """The trial has another answer already."""


class BlindTrials:
    """Owns the trials and their answers. Must be used by a single thread."""

    def __init__(self, trials: Sequence[Trial], results: Path) -> None:
        """Raises `UserError` for a file of results that cannot be read."""
        self.trials, self.results = {trial.key: trial for trial in trials}, results
        earlier = read_answers(results)
        self.answers = {key: name_winner(self.trials[key], row) for key, row in earlier.items() if key in self.trials}
        self.others = len(earlier) - len(self.answers)
        """Number of answers in the file to other trials: of other texts, models or sampling settings."""
        self.systems = tuple(sorted({trials[0].left, trials[0].right}))
        self._choices: dict[str, Choice] = {}

    @property
    def next(self) -> Trial | None:
        """The first trial without an answer; None at the end. It stays the same until it has one."""
        return next((trial for key, trial in self.trials.items() if key not in self.answers), None)

    def answer(self, key: str, choice: Choice) -> None:
        """Write an answer. A second one with the same choice (a double click) changes nothing.

        Raises KeyError for an unknown trial, `AnsweredError` for one with another answer, `UserError` if the file cannot be written.
        """
        trial = self.trials[key]
        if key in self.answers:
            if self._choices.get(key) != choice:
                raise AnsweredError(key)
            return
        sides: dict[str, object] = {"text": trial.text, "left": trial.left, "right": trial.right}
        sides |= {} if trial.clips is None else {"clips": [*trial.clips]}
        row = {"trial": key, **sides, "choice": choice, "winner": trial.winner(choice), "time": round(time.time())}
        files.append_line(self.results, json.dumps(row, ensure_ascii=False))
        self.answers[key], self._choices[key] = trial.winner(choice), choice

    @property
    def outcome(self) -> Preferences:
        wins = {system: list(self.answers.values()).count(system) for system in self.systems}
        return evaluate(wins, list(self.answers.values()).count(SAME))


def make_trials(texts: Sequence[str], systems: Mapping[str, str], sampling: str) -> list[Trial]:
    """A trial for each text in random order, the systems on random sides. `systems`: name → model key (`compute_model_key`); `sampling`:
    a text that changes with the sampling settings. With other weights or settings the clips are others, and so are the trials."""
    chance = secrets.SystemRandom()
    trials = []
    for text in chance.sample(list(texts), len(texts)):
        left, right = chance.sample([*systems], 2)
        key = hashlib.sha256(json.dumps([text, sorted(systems.items()), sampling]).encode()).hexdigest()[:12]
        trials.append(Trial(key, text, left, right))
    return trials


def make_clip_trials(given: Sequence[tuple[str, str, str, str]]) -> list[Trial]:
    """Trials between two clips, of (key, text, path of the clip with the higher reward, path of the other), in random order, the clips on
    random sides."""
    chance = secrets.SystemRandom()
    trials = []
    for key, text, *clips in chance.sample([*given], len(given)):
        sides = chance.sample([*zip(REWARDS, clips, strict=True)], 2)
        (left, first), (right, second) = sides
        trials.append(Trial(key, text, left, right, (first, second)))
    return trials


def evaluate(wins: Mapping[str, int], same: int) -> Preferences:
    """The outcome of two systems' wins. Answers without a preference count for neither."""
    first, total = next(iter(wins.values())), sum(wins.values())
    if not total:
        return Preferences(wins, same, None, None, None, None)
    from scipy.stats import binomtest

    test = binomtest(first, total)
    interval = test.proportion_ci(SURE, method="exact")
    return Preferences(wins, same, first / total, float(interval.low), float(interval.high), float(test.pvalue))


def name_winner(trial: Trial, row: Mapping[str, Any]) -> str:
    """The winner of an earlier answer. Of two clips of a model, the one with the higher reward may be another now."""
    clips, choice, winner = row.get("clips"), row.get("choice"), str(row["winner"])
    if trial.clips is None or not isinstance(clips, list) or len(clips) != 2 or choice not in ("left", "right"):
        return winner
    sides = dict(zip(trial.clips, (trial.left, trial.right), strict=True))
    return sides.get(str(clips[choice == "right"]), winner)


def read_answers(path: Path) -> dict[str, dict[str, Any]]:
    """Trial → its answer, of earlier starts. A line that a killed server left incomplete is reported on stderr, and its trial comes again.

    Raises `UserError` for a file of something else.
    """
    if not path.exists():
        return {}
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--results {path}: cannot be read ({error}); give another file") from error
    found, incomplete = dict[str, dict[str, Any]](), list[int]()
    for number, line in enumerate(lines, start=1):
        try:
            row = loads_object(line)
        except UserError:
            incomplete.append(number)
            continue
        if not {"trial", "winner"} <= row.keys():
            raise UserError(f"{path}:{number}: not an answer of a blind comparison; give another file to --results")
        found[str(row["trial"])] = row
    if len(incomplete) > 1 and not found:
        raise UserError(f"{path}:{incomplete[0]}: not an answer of a blind comparison; give another file to --results")
    for number in incomplete:
        print_diagnostic(f"warning: {path}:{number}: incomplete, so this trial has no answer")
    return found


def read_texts(path: Path) -> list[str]:
    """The lines of a text file without repetitions. Raises `UserError`."""
    try:
        lines = [line.strip() for line in read_lines(path)]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--blind {path}: cannot be read ({error}); give a text file with one sentence per line") from error
    found = list(dict.fromkeys(filter(None, lines)))
    if not found:
        raise UserError(f"--blind {path}: has no text; write one sentence per line, or speaker|sentence")
    return found
