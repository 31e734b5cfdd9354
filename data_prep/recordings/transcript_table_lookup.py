"""Tables that hold the texts of many recordings: which files in a folder are such tables, and which line belongs to a recording."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from data_prep.audio.stream_reader import EXTENSIONS, FILM_EXTENSIONS
from data_prep.recordings import ljspeech_metadata, named_column_tables, transcript_list_parsers
from data_prep.recordings.ljspeech_metadata import MetadataLine
from data_prep.recordings.text_encoding import read_text
from finetune.errors import UserError

NAMES = (*ljspeech_metadata.NAMES, "metadata.jsonl")
REPORTED = (".csv", ".jsonl")
"""Endings of files that are named in a note if they are no table; a .tsv may be a transcript of Whisper."""


@dataclass
class TranscriptTables:
    """All tables of one folder."""

    folder: Path
    by_stem: dict[str, list[tuple[tuple[str, ...], MetadataLine]]] = field(default_factory=lambda: defaultdict(list))
    """Last part of a recording's name → (all parts of its name, line)."""
    notes: list[str] = field(default_factory=list)

    def find_lines(self, recording: Path) -> list[MetadataLine]:
        """The lines for a recording under the folder; the table that comes first has the first line.

        A table may name less of the path than there is (`a`), or more (`output/slices/a.wav`): the parts that both have must be equal.
        A line with the whole path goes before the others of its table. Raises `UserError` for two lines of a table with different texts.
        """
        parts = recording.relative_to(self.folder).with_suffix("").parts
        fitting = [(name, line) for name, line in self.by_stem.get(parts[-1], ()) if _have_same_tail(name, parts)]
        exact = {line.path for name, line in fitting if name == parts}
        lines = [line for name, line in fitting if name == parts or line.path not in exact]
        first: dict[Path, MetadataLine] = {}
        for line in lines:
            if line.text != first.setdefault(line.path, line).text:
                raise UserError(
                    f"{line.path}:{line.line}: names {recording}, as line {first[line.path].line} does with another text; "
                    "write the whole path of the recording in both lines, or remove one"
                )
        return lines

    def list_lines(self) -> Iterator[tuple[str, MetadataLine]]:
        """All lines with the last part of their names."""
        return ((stem, line) for stem, lines in self.by_stem.items() for _, line in lines)


def read_tables(folder: Path, more: Sequence[Path] = ()) -> TranscriptTables:
    """Read all tables of a folder, and `more` in folders below it. Raises `UserError` with file and line for broken ones, and for a
    recording that is named twice."""
    tables = TranscriptTables(folder)
    for path in [*list_tables(folder), *more]:
        if not _is_table(path):
            tables.notes.append(f"{path} is not read: its first line names no columns like file_name and text")
            continue
        content, note = read_text(path)
        tables.notes += [note] if note else []
        seen: dict[tuple[str, ...], int] = {}
        for name, line in _parse_table(path, content):
            parts = split_name(name)
            if parts in seen:
                raise UserError(f"{path}:{line.line}: {name!r} is also in line {seen[parts]}; remove one of the lines")
            seen[parts] = line.line
            tables.by_stem[parts[-1]].append((parts, line))
    return tables


def list_tables(folder: Path) -> list[Path]:
    """The tables of a folder, and files that look like one: metadata files first, then the others by name."""
    paths = [path for path in sorted(folder.iterdir() if folder.is_dir() else ()) if path.is_file() and not path.name.startswith(".")]
    first = [path for name in NAMES for path in paths if path.name == name]
    return first + [path for path in paths if path not in first and (_is_table(path) or path.suffix.lower() in REPORTED)]


def _is_table(path: Path) -> bool:
    return path.name in NAMES or transcript_list_parsers.is_transcript_list(path) or named_column_tables.is_column_table(path)


def _parse_table(path: Path, content: str) -> Iterator[tuple[str, MetadataLine]]:
    if transcript_list_parsers.is_transcript_list(path):
        return transcript_list_parsers.parse_list(path, content)
    if named_column_tables.is_column_table(path) or path.suffix == ".jsonl":
        return named_column_tables.parse_columns(path, content)
    return iter(ljspeech_metadata.parse_table(path, content).items())


def split_name(name: str) -> tuple[str, ...]:
    """`./clips/a.wav` → (`clips`, `a`)."""
    path = PurePosixPath(name.replace("\\", "/"))
    named = path.with_suffix("") if path.suffix.lower() in (*EXTENSIONS, *FILM_EXTENSIONS) else path
    return tuple(part for part in named.parts if part not in ("/", ".", "..")) or (name,)


def _have_same_tail(name: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    shared = min(len(name), len(parts))
    return name[-shared:] == parts[-shared:]
