"""The texts of a file: one a line, or in a .jsonl file one object a line, {"text"} with its own "speaker" and "language" if it likes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finetune.errors import UserError
from finetune.storage import strict_json

from ..inference.synthesizer import Request

ROW_KEYS = ("text", "speaker", "language")
SHOWN = 10
"""Problems that are told at once."""


@dataclass(frozen=True)
class Line:
    """One text to speak."""

    place: str
    """`file:line`, for people."""
    number: int
    """Of the line, from 1."""
    request: Request

    @property
    def name(self) -> str:
        """Of its wav."""
        return f"{self.number:05d}.wav"


def read(path: Path, common: Request) -> list[Line]:
    """All lines that are not empty, each with what the command line says for all of them. Raises `UserError` for a file without any."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--text-file {path}: {error}; give a UTF-8 text file with one text a line") from None
    requests = of_rows if path.suffix == ".jsonl" else of_texts
    found = list(requests(path, [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()], common))
    if not found:
        raise UserError(f"--text-file {path} holds no text; give one a line")
    return found


def of_texts(path: Path, lines: Iterable[tuple[int, str]], common: Request) -> Iterator[Line]:
    for number, line in lines:
        yield Line(f"{path}:{number}", number, replace(common, text=line.strip()))


def of_rows(path: Path, lines: Iterable[tuple[int, str]], common: Request) -> Iterator[Line]:
    for number, line in lines:
        try:
            row: Any = strict_json.loads(line)
        except ValueError as error:
            raise UserError(f'{path}:{number}: no JSON ({strict_json.one_line(error)}); write {{"text": …}}') from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise UserError(
                f'{path}:{number}: expected an object with "text", and "speaker" or "language" if they differ; found {line[:60]}'
            )
        own = {key: row[key] for key in ROW_KEYS if row.get(key) is not None}
        yield Line(f"{path}:{number}", number, replace(common, **own))


def check_all(lines: Iterable[Line], check: Callable[[Request], None]) -> None:
    """Raise one `UserError` for all lines that cannot be spoken, each with its place."""
    problems = []
    for line in lines:
        try:
            check(line.request)
        except UserError as error:
            problems.append(f"{line.place}: {error}")
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise UserError("\n".join([*problems[:SHOWN], *more]))
