"""metadata.csv as in LJSpeech: fields divided by `|`, without quotes, without a header.

Two meanings of three fields are in use: `id|text|normalised text` (LJSpeech) and `id|speaker|text` (Piper, for several speakers). Which one
a table has is read from all of its lines together; what fits neither is refused, since a wrong guess would train on names.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from data_prep.audio import EXTENSIONS
from finetune.errors import UserError

NAMES = ("metadata.csv", "metadata_val.csv")
"""The second holds what a trainer validates on. Which clips that is, is decided anew here; their texts are as good."""
ALIKE = 0.5
"""Share of letters that a text has in common with its normalised form: names and texts have less."""


class Entry(NamedTuple):
    """One line."""

    path: Path
    line: int
    text: str
    speaker: str | None


def read_table(path: Path, content: str) -> dict[str, Entry]:
    """id → line; an id may also be the path of a recording. Raises `UserError` with file and line for what cannot be understood."""
    lines = [(number, line.split("|")) for number, line in enumerate(content.split("\n"), start=1) if line.strip()]
    for number, fields in lines:
        if not 2 <= len(fields) <= 3 or not fields[0].strip() or not fields[-1].strip():
            raise UserError(f"{path}:{number}: expected id|text or id|text|normalised text, found {'|'.join(fields)[:80]!r}")
    by_speaker = _names_speakers(path, lines)
    entries: dict[str, Entry] = {}
    for number, fields in lines:
        name = _id_of(fields[0].strip())
        if name in entries:
            raise UserError(f"{path}:{number}: the id {name!r} is there twice (line {entries[name].line}); remove one of the lines")
        entries[name] = Entry(path, number, fields[-1].strip(), fields[1].strip() if by_speaker else None)
    return entries


def _id_of(field: str) -> str:
    """`wavs/a.wav` → `a`."""
    path = PurePosixPath(field)
    return path.stem if path.suffix.lower() in EXTENSIONS else field


def _names_speakers(path: Path, lines: list[tuple[int, list[str]]]) -> bool:
    """Whether the second of three fields is a speaker: names come again and are unlike the texts."""
    threes = [(number, fields[1], fields[2]) for number, fields in lines if len(fields) == 3]
    alike = sum(_alike(second, third) for _, second, third in threes)
    if 2 * alike >= len(threes):
        return False
    names = {second.strip() for _, second, _ in threes}
    if 10 * alike <= len(threes) == len(lines) and 2 * len(names) <= len(threes) and "" not in names:
        return True
    number = next(number for number, second, third in threes if not _alike(second, third))
    raise UserError(
        f"{path}:{number}: three fields are id|text|normalised text, or id|speaker|text in all lines; here they are neither; write id|text"
    )


def _alike(second: str, third: str) -> bool:
    """By their letters, whatever the order: enough here, and fast."""
    return SequenceMatcher(None, second.lower(), third.lower(), autojunk=False).quick_ratio() >= ALIKE
