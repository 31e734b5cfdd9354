"""Problems of the rows of a data file as one error message, in which one cause is one line, however many rows it affects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from overtone.finetune.errors import format_count

SHOWN_PROBLEMS = 10
"""Maximum number of causes, and of line numbers of one cause, in a message."""
VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
"""Parts of a message that differ between rows with the same cause: numbers, and what is quoted from the row."""


class RowProblem(NamedTuple):
    """A problem of one row."""

    line: int
    """Line number in the data file, from 1."""
    text: str


def format_row_problems(path: Path, problems: Sequence[RowProblem], rows: int) -> str:
    """Return the message for `problems` among the `rows` rows of a file, causes in the order in which they appear.

    A cause that all rows share is one line: `train.jsonl: all 3,789 rows: …`.
    """
    causes: dict[str, list[RowProblem]] = {}
    for problem in problems:
        causes.setdefault(VALUES.sub("…", problem.text), []).append(problem)
    if len(causes) == 1 and len(problems) == rows > 1:
        same = len({problem.text for problem in problems}) == 1
        text = problems[0].text if same else f"{problems[0].text} (line {problems[0].line}, and likewise in the others)"
        return f"{path}: all {rows:,} rows: {text}"
    shown = [f"{path}:{found[0].line}: {found[0].text}{_format_lines(found)}" for found in [*causes.values()][:SHOWN_PROBLEMS]]
    rest = sum(len(found) for found in [*causes.values()][SHOWN_PROBLEMS:])
    more = [f"… and {rest:,} more"] if rest else []
    return "\n  ".join([f"{format_count(len(problems), 'invalid row')}:", *shown, *more])


def _format_lines(found: Sequence[RowProblem]) -> str:
    """` (12 rows: lines 1, 2, …)` for several rows with the same cause."""
    listed = ", ".join(str(problem.line) for problem in found[:SHOWN_PROBLEMS])
    more = ", …" if len(found) > SHOWN_PROBLEMS else ""
    return f" ({len(found):,} rows: lines {listed}{more})" if len(found) > 1 else ""
