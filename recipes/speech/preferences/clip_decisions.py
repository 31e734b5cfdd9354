"""Decisions of people between clips of `overtone pairs`: which two clips of a text they compare, and what their answers say.

`serve --blind FOLDER` plays the clips, and writes the answers. An answer counts only for the clips that were played: its trial is a digest
of their samples and codes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.json_schema import JsonPart, parse_model
from overtone.finetune.storage.strict_json import loads_object
from overtone.finetune.terminal import print_diagnostic

from .pair_selection import ClipRecord

TRIALS = "trials.jsonl"
"""The trials in the folder of the pairs, a `ClipTrial` on each line."""
TwoClips = Annotated[list[str], Field(min_length=2, max_length=2)]
"""Paths of two clips, relative to the folder."""


class ClipTrial(JsonPart):
    """Two clips of a text that people can compare."""

    text: str
    speaker: str
    clips: TwoClips
    """The one with the higher reward first."""


class ClipAnswer(JsonPart):
    """An answer of a blind comparison."""

    trial: str
    choice: Literal["left", "right", "same"]
    clips: TwoClips | None = None
    """Left and right; None: the answer compares two models, not two clips."""


@dataclass(frozen=True)
class ClipDecision:
    """The votes of people about two clips of a text."""

    clips: tuple[ClipRecord, ClipRecord]
    votes: tuple[int, int]
    """Answers that prefer each."""
    same: int
    """Answers without a preference, which count for neither."""

    @property
    def preferred(self) -> tuple[ClipRecord, ClipRecord] | None:
        """The better clip and the other; None if as many people prefer each."""
        if self.votes[0] == self.votes[1]:
            return None
        return self.clips if self.votes[0] > self.votes[1] else (self.clips[1], self.clips[0])


@dataclass
class Decisions:
    """The decisions by the paths of their two clips, and why other answers do not count."""

    by_clips: dict[frozenset[str], ClipDecision] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)


def compute_trial_key(first: ClipRecord, second: ClipRecord) -> str:
    """Digest of two clips in any order, of 12 hexadecimal digits."""
    facts = sorted([clip.audio, clip.sha256, clip.codes] for clip in (first, second))
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def is_unchanged(folder: Path, clip: ClipRecord) -> bool:
    """Return whether a clip's file is there, as it was written."""
    try:
        return files.digest(files.resolve_under(folder, clip.audio)) == clip.sha256
    except (OSError, UserError):
        return False


def choose_trial(clips: Sequence[ClipRecord], rewards: Mapping[str, float], judged: Sequence[str]) -> ClipTrial | None:
    """The two clips of a text to compare: those of the judge's pair, `judged`; if that is empty, those with the highest and the lowest
    reward of other codes. None if all clips are the same. `rewards`: by the clips' keys."""
    best = max(clips, key=lambda clip: rewards[clip.key])
    worst = min((clip for clip in clips if clip.codes != best.codes), key=lambda clip: rewards[clip.key], default=None)
    if worst is None:
        return None
    return ClipTrial(text=best.text, speaker=best.speaker, clips=[*judged] or [best.audio, worst.audio])


def read_answers(paths: Iterable[Path]) -> tuple[list[ClipAnswer], int]:
    """The answers in all files, of each file the last to each trial; and the number of incomplete lines, of a killed server, which are also
    reported on stderr. Raises `UserError` for a file of something else, without an answer, or given twice."""
    answers, torn, known = list[ClipAnswer](), 0, dict[str, Path]()
    for path in paths:
        found, incomplete = dict[str, ClipAnswer](), list[int]()
        try:
            if (digest := files.digest(path)) in known:
                raise UserError(f"--decisions {path}: has the same answers as {known[digest]}, which would count twice; give it once")
            known[digest] = path
            for number, line in enumerate(input_files.read_lines(path), start=1):
                if not line.strip():
                    continue
                try:
                    answer = parse_model(ClipAnswer, loads_object(line))
                except UserError:
                    incomplete.append(number)
                    continue
                except ValueError as error:
                    raise UserError(f"--decisions {path}:{number}: not an answer of `serve --blind` ({error})") from None
                found[answer.trial] = answer
        except OSError as error:
            raise UserError(f"--decisions {path}: {error.strerror or error}; give the file of `serve --blind … --results`") from None
        if not found:
            raise UserError(f"--decisions {path}: has no answer of `serve --blind`; give the file of its --results")
        for number in incomplete:
            print_diagnostic(f"warning: {path}:{number}: incomplete; this answer does not count")
        answers += found.values()
        torn += len(incomplete)
    return answers, torn


def decide(answers: Iterable[ClipAnswer], texts: Iterable[Sequence[ClipRecord]], folder: Path) -> Decisions:
    """The decisions about the clips of `texts`, those of one model with one sampling, grouped by text. Other answers are counted."""
    groups = [list(clips) for clips in texts]
    known = {clip.audio: (at, clip) for at, group in enumerate(groups) for clip in group}
    found, votes = Decisions(), dict[frozenset[str], Counter[str]]()
    for answer in answers:
        if (reason := _find_problem(answer, known, folder)) is not None:
            found.dropped[reason] += 1
            continue
        assert answer.clips is not None  # or there is a reason
        left, right = answer.clips
        winner = {"left": left, "right": right, "same": ""}[answer.choice]
        votes.setdefault(frozenset(answer.clips), Counter())[winner] += 1
    for pair, counts in votes.items():
        first, second = (known[audio][1] for audio in sorted(pair))
        found.by_clips[pair] = ClipDecision((first, second), (counts[first.audio], counts[second.audio]), counts[""])
    return found


def _find_problem(answer: ClipAnswer, known: Mapping[str, tuple[int, ClipRecord]], folder: Path) -> str | None:
    """Return why an answer does not count; None if it does."""
    if answer.clips is None:
        return "about two models, not two clips"
    if not all(audio in known for audio in answer.clips):
        return "about clips of another model, other settings or another folder"
    (one, first), (other, second) = (known[audio] for audio in answer.clips)
    if one != other:
        return "about two texts"
    if first.codes == second.codes:
        return "about a clip and itself"
    if answer.trial != compute_trial_key(first, second) or not (is_unchanged(folder, first) and is_unchanged(folder, second)):
        return "about a clip that is missing or has changed"
    return None
