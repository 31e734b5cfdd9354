"""The texts of `--text-file`: one per line, or in a .jsonl file one object per line with "text" and optionally "speaker" and "language"."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overtone.finetune.errors import UserError
from overtone.finetune.storage import strict_json, text_lines
from overtone.recipes.speech.interface import SpeechRequest

ROW_KEYS = ("text", "speaker", "language")
SHOWN_PROBLEMS = 10
"""Maximum number of problems listed in one error message."""


@dataclass(frozen=True)
class TextLine:
    """One text to speak."""

    place: str
    """`file:line`, for messages."""
    number: int
    """Line number in the file, from 1."""
    request: SpeechRequest

    @property
    def name(self) -> str:
        """File name of its wav."""
        return f"{self.number:05d}.wav"


def read_lines(path: Path, defaults: SpeechRequest) -> list[TextLine]:
    """All non-empty lines, completed with `defaults` from the command line. Raises `UserError` if there are none."""
    try:
        lines = text_lines.read_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"--text-file {path}: {problem}; give a UTF-8 text file with one text per line") from None
    parse = parse_rows if path.suffix == ".jsonl" else parse_texts
    found = list(parse(path, [(at, line) for at, line in enumerate(lines, 1) if line.strip()], defaults))
    if not found:
        raise UserError(f"--text-file {path} has no text; write one text per line")
    return found


def parse_texts(path: Path, lines: Iterable[tuple[int, str]], defaults: SpeechRequest) -> Iterator[TextLine]:
    """Lines of a plain text file."""
    for number, line in lines:
        yield TextLine(f"{path}:{number}", number, replace(defaults, text=line.strip()))


def parse_rows(path: Path, lines: Iterable[tuple[int, str]], defaults: SpeechRequest) -> Iterator[TextLine]:
    """Lines of a .jsonl file. Raises `UserError` with the place of a bad line."""
    for number, line in lines:
        try:
            row: Any = strict_json.loads(line)
        except ValueError as error:
            raise UserError(f'{path}:{number}: not JSON ({strict_json.one_line(error)}); write {{"text": …}}') from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise UserError(f'{path}:{number}: expected an object with "text", and optionally "speaker" and "language"; found {line[:60]}')
        own = {key: row[key] for key in ROW_KEYS if row.get(key) is not None}
        for key, value in own.items():
            if not isinstance(value, str):
                raise UserError(f"{path}:{number}: {key}: expected a text in quotes, found {json.dumps(value):.60}; correct or remove it")
        yield TextLine(f"{path}:{number}", number, replace(defaults, **own))


def check_lines(lines: Iterable[TextLine], check: Callable[[SpeechRequest], None]) -> None:
    """Raise one `UserError` that lists all lines that cannot be spoken, each with its place."""
    problems = []
    for line in lines:
        try:
            check(line.request)
        except UserError as error:
            problems.append(f"{line.place}: {error}")
    if problems:
        more = [f"and {len(problems) - SHOWN_PROBLEMS} more"] if len(problems) > SHOWN_PROBLEMS else []
        raise UserError("\n".join([*problems[:SHOWN_PROBLEMS], *more]))
