"""Finds the tables in a folder that hold the texts of many recordings, and the line of each recording."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from overtone.data_prep.recordings import ljspeech_metadata, named_column_tables, transcript_list_parsers
from overtone.data_prep.recordings.ljspeech_metadata import MetadataLine
from overtone.data_prep.recordings.named_column_tables import ColumnTable
from overtone.data_prep.recordings.recording_names import TRIVIAL, NameRank, RecordingNames, format_rules, split_name
from overtone.data_prep.recordings.text_encoding import read_text
from overtone.finetune.errors import UserError

NAMES = (*ljspeech_metadata.NAMES, "metadata.jsonl")
REPORTED = (".csv", ".jsonl")
"""Endings of files that are named in a note if they are no table; a .tsv may be a transcript of Whisper."""
SHOWN = 3


@dataclass
class TranscriptTables:
    """All tables of one folder."""

    folder: Path
    lines: list[tuple[str, MetadataLine]] = field(default_factory=list)
    """(Name of a recording, line): those of the first table first."""
    notes: list[str] = field(default_factory=list)
    matched: dict[Path, list[tuple[MetadataLine, str]]] = field(default_factory=dict)
    """Recording → (line, rule by which its name was found)."""
    recordings: RecordingNames | None = None
    """Names of the recordings under the folder."""

    def match(self, recordings: RecordingNames) -> None:
        """Assign each line to the recordings under the folder that its name fits best; `find_lines` finds them then."""
        self.recordings = recordings
        fitting: dict[Path, dict[Path, list[tuple[MetadataLine, str, NameRank]]]] = defaultdict(lambda: defaultdict(list))
        for name, line in self.lines:
            for found in recordings.find(name):
                fitting[found.recording][line.path].append((line, found.rule, found.rank))
        self.matched = {path: [one for lines in tables.values() for one in _choose_lines(path, lines)] for path, tables in fitting.items()}
        repeated: dict[Path, list[str]] = defaultdict(list)
        for path, lines in self.matched.items():
            for (first, _), (line, _) in pairwise(lines):
                if line.path == first.path:
                    repeated[line.path].append(f"line {line.line} names {path.name} as line {first.line} does")
        self.notes += [_format_repeated(path, names) for path, names in repeated.items()]

    def find_lines(self, recording: Path) -> list[MetadataLine]:
        """Return the lines for a recording; the table that comes first has the first line."""
        return [line for line, _ in self.matched.get(recording, ())]

    def find_nearest(self, name: str, among: set[Path]) -> str:
        """Return the file name of the recording, one of `among`, that is spelled most like a name; empty without a similar one."""
        return self.recordings.find_nearest(name, among) if self.recordings else ""

    def list_unused(self) -> list[tuple[str, MetadataLine]]:
        """Return the lines that belong to no recording."""
        used = {(line.path, line.line) for lines in self.matched.values() for line, _ in lines}
        return [(name, line) for name, line in self.lines if (line.path, line.line) not in used]

    def describe_rules(self, recordings: set[Path]) -> list[str]:
        """Return a note for each table on how it names these recordings, if it does not name all of them as their files."""
        counts: dict[Path, Counter[str]] = defaultdict(Counter)
        for path, lines in self.matched.items():
            for line, rule in lines if path in recordings else ():
                counts[line.path][rule] += 1
        return [f"{path}: {format_rules('recording', rules)}" for path, rules in counts.items() if not TRIVIAL.issuperset(rules)]


def _choose_lines(recording: Path, lines: list[tuple[MetadataLine, str, NameRank]]) -> list[tuple[MetadataLine, str]]:
    """Return the lines of one table whose names fit a recording best. Raises `UserError` if they have different texts."""
    least = min(rank for *_, rank in lines)
    best = [(line, rule) for line, rule, rank in lines if rank == least]
    first = best[0][0]
    for line, _ in best[1:]:
        if (line.text, line.speaker) != (first.text, first.speaker):
            what = "text" if line.text != first.text else "speaker"
            raise UserError(
                f"{line.path}:{line.line}: names {recording}, as line {first.line} does with another {what}; "
                "write the whole path of the recording in both lines, or remove one"
            )
    return best


def read_tables(folder: Path, more: Sequence[Path] = ()) -> TranscriptTables:
    """Read all tables of a folder, and `more` in folders below it. Raises `UserError` with file and line for broken ones, and for a
    recording that is named twice with different texts."""
    tables = TranscriptTables(folder)
    for path in [*list_tables(folder), *more]:
        if not _is_table(path):
            tables.notes.append(f"{path} is not read: its first line names no columns like file_name and text")
            continue
        content, note = read_text(path)
        rows, notes = _parse_table(path, content)
        lines, repeated = _drop_repeated(path, rows)
        tables.notes += [*([note] if note else []), *notes, *repeated]
        tables.lines += lines
    return tables


def _drop_repeated(path: Path, rows: list[tuple[str, MetadataLine]]) -> tuple[list[tuple[str, MetadataLine]], list[str]]:
    """Return the rows without those that repeat an earlier one, and a note on these. Raises `UserError` for one with another text."""
    first: dict[tuple[str, ...], MetadataLine] = {}
    kept, repeated = list[tuple[str, MetadataLine]](), list[str]()
    for name, line in rows:
        earlier = first.setdefault(split_name(name), line)
        if earlier is line:
            kept.append((name, line))
        elif (earlier.text, earlier.speaker, earlier.language) == (line.text, line.speaker, line.language):
            repeated.append(f"line {line.line} repeats {earlier.line}")
        else:
            what = "text" if earlier.text != line.text else "speaker" if earlier.speaker != line.speaker else "language"
            raise UserError(f"{path}:{line.line}: {name!r} is also in line {earlier.line} with another {what}; remove one of the lines")
    return kept, [_format_repeated(path, repeated)] if repeated else []


def _format_repeated(path: Path, repeated: list[str]) -> str:
    shown = "; ".join([*repeated[:SHOWN], *["…"] * (len(repeated) > SHOWN)])
    return f"{path}: repeated rows, dropped: {len(repeated)} ({shown})"


def list_tables(folder: Path) -> list[Path]:
    """Return the tables of a folder, and files that look like one: metadata files first, then the others by name."""
    paths = [path for path in sorted(folder.iterdir() if folder.is_dir() else ()) if path.is_file() and not path.name.startswith(".")]
    first = [path for name in NAMES for path in paths if path.name == name]
    return first + [path for path in paths if path not in first and (_is_table(path) or path.suffix.lower() in REPORTED)]


def _is_table(path: Path) -> bool:
    return path.name in NAMES or transcript_list_parsers.is_transcript_list(path) or named_column_tables.is_column_table(path)


def _parse_table(path: Path, content: str) -> ColumnTable:
    if transcript_list_parsers.is_transcript_list(path):
        return ColumnTable(list(transcript_list_parsers.parse_list(path, content)), [])
    if named_column_tables.is_column_table(path) or path.suffix == ".jsonl":
        return named_column_tables.parse_columns(path, content)
    return ColumnTable(ljspeech_metadata.parse_table(path, content), [])
