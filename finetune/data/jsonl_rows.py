"""Reads the rows of a JSONL file with their lines. Everything that is wrong with them is one error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from overtone.finetune.data.row_problems import RowProblem, format_row_problems
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Row
from overtone.finetune.storage import input_files
from overtone.finetune.storage.strict_json import loads_object


def visit_rows(path: Path, visit: Callable[[int, Row], None], advice: str, name: str = "") -> None:
    """Call `visit` with the line number, from 1, and the content of each row of a JSONL file; empty lines are skipped.

    Raises one `UserError` that names the file and the line of each row that is no JSON object, or for which `visit` raises one. For a file
    that cannot be read or has no row, its message begins with `name`, the key or flag that gave the file, and ends with `advice`.
    """
    problems, rows, named = list[RowProblem](), 0, f"{name} {path}".strip()
    try:
        file = input_files.open_file(path)
    except OSError as error:
        raise UserError(f"{named}: {error.strerror or error}; {advice}") from None
    with file:
        for number, line in enumerate(input_files.split_lines(file, path), start=1):
            if not line.strip():
                continue
            rows += 1
            try:
                visit(number, loads_object(line))
            except UserError as error:
                problems.append(RowProblem(number, str(error)))
    if problems:
        raise UserError(format_row_problems(path, problems, rows))
    if not rows:
        raise UserError(f"{named} has no rows; {advice}")
