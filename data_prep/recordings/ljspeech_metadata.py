"""Reader for LJSpeech-style metadata.csv: fields separated by `|`, no header; quotation marks are text.

Three fields mean `id|text|normalised text` (LJSpeech) or `id|speaker|text` (Piper, several speakers). All lines together decide which;
a file that fits neither is rejected, since a wrong guess would train on names.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple

from overtone.data_prep.delimited_records import unquote
from overtone.finetune.errors import UserError

NAMES = ("metadata.csv", "metadata_val.csv")
"""Names of the files. The second lists a trainer's validation clips. Their texts are used too; the validation split is chosen anew here."""
LEAST_SIMILARITY = 0.5
"""Minimum share of letters that a text and its normalised form have in common; a name and a text share fewer."""


class MetadataLine(NamedTuple):
    """One line of a table of recordings and texts."""

    path: Path
    line: int
    text: str
    speaker: str | None
    language: str | None = None


def parse_table(path: Path, content: str) -> list[tuple[str, MetadataLine]]:
    """Return (Id or path of the recording, its line) of each line. Raises `UserError` with file and line for invalid lines."""
    lines = [(number, line.split("|")) for number, line in enumerate(content.split("\n"), start=1) if line.strip()]
    for number, fields in lines:
        if not 2 <= len(fields) <= 3 or not fields[0].strip() or not fields[-1].strip():
            raise UserError(f"{path}:{number}: expected id|text or id|text|normalised text, found {'|'.join(fields)[:80]!r}")
    by_speaker = _has_speaker_column(path, lines)
    return [
        (fields[0].strip(), MetadataLine(path, number, unquote(fields[-1].strip()), fields[1].strip() if by_speaker else None))
        for number, fields in lines
    ]


def _has_speaker_column(path: Path, lines: list[tuple[int, list[str]]]) -> bool:
    """Return whether the second of three fields is a speaker: names repeat and differ from the texts."""
    threes = [(number, fields[1], fields[2]) for number, fields in lines if len(fields) == 3]
    similar = sum(_are_similar(second, third) for _, second, third in threes)
    if 2 * similar >= len(threes):
        return False
    names = {second.strip() for _, second, _ in threes}
    if 10 * similar <= len(threes) == len(lines) and 2 * len(names) <= len(threes) and "" not in names:
        return True
    number = next(number for number, second, third in threes if not _are_similar(second, third))
    raise UserError(
        f"{path}:{number}: three fields are id|text|normalised text, or id|speaker|text in all lines; this file fits neither; use id|text"
    )


def _are_similar(second: str, third: str) -> bool:
    """Compare the letters regardless of order: sufficient here, and fast."""
    return SequenceMatcher(None, second.lower(), third.lower(), autojunk=False).quick_ratio() >= LEAST_SIMILARITY
