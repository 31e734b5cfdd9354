"""Tables of recordings and texts whose columns are named: CSV, TSV, JSONL and JSON files with a column for the file and one for its text.

AudioFolder's metadata.csv and metadata.jsonl (`file_name`, and `text` or `transcription`), Common Voice's validated.tsv (`path`,
`sentence`, `client_id`, `locale`), NeMo's manifests (`audio_filepath`, `text`), Label Studio's CSV and JSON-MIN (`audio`, `transcription`).
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from overtone.data_prep.delimited_records import BrokenRecordError, Record, find_excel_mark, is_quoted, read_records, unquote
from overtone.data_prep.recordings.ljspeech_metadata import NAMES, MetadataLine
from overtone.data_prep.recordings.recording_names import has_sound_ending
from overtone.data_prep.recordings.text_encoding import decode_head, read_text
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.storage import input_files, strict_json

ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
FILE_COLUMNS = (
    *("file_name", "path", "audio", "audio_filepath", "audio_path", "audio_file", "filename", "file", "wav"),
    *("wav_filename", "wav_path", "audio_filename", "clip"),
)
METADATA_COLUMNS = ("id", "name")
"""Further names of the column of the file, in metadata.csv only: other tables use these names for anything."""
TEXT_COLUMNS = ("text", "sentence", "transcription", "transcript", "normalized_text")
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id", "speaker_name")
LANGUAGE_COLUMNS = ("language", "locale", "lang")
UNCHECKED = ("other.tsv", "invalidated.tsv", "reported.tsv")
"""Tables of Common Voice whose sentences nobody confirmed, or that somebody rejected."""
PART_COLUMNS = ("offset", "start", "start_time", "start_seconds", "start_sec", "begin", "begin_time")
"""Columns that say where in the recording the text begins: such a row is not the text of the whole recording."""
HEAD_BYTES = 1 << 16
NO_TEXT = frozenset({"#NAME?", "#REF!", "#VALUE!", "#N/A", "#DIV/0!", "#NUM!", "#NULL!", "nan", "NaN"})
"""Values that spreadsheets and pandas write in place of a missing text: Excel takes `-Hello` for a formula."""
SHOWN = 3


class TableColumns(NamedTuple):
    """The columns of a table that are read; None: it has no such column."""

    file: str
    text: str
    speaker: str | None
    language: str | None


class ColumnTable(NamedTuple):
    """The rows of a table with named columns: (path of the recording as the table has it, its line)."""

    rows: list[tuple[str, MetadataLine]]
    notes: list[str]
    """Rows without a text, and texts over several lines, by their lines."""


class _Header(NamedTuple):
    """The line that names the columns."""

    line: int
    text: str
    delimiter: str
    names: list[str]


SPEAKER = TableColumns._fields.index("speaker")


def find_columns(names: Sequence[str], table: str = "") -> TableColumns | None:
    """Return the columns that are read among all columns of a table; None if there is none for the file, or none for the text. `table`: its
    file name."""

    def find_first(known: tuple[str, ...]) -> str | None:
        return next((name for wanted in known for name in names if re.sub(r"[ -]", "_", name.strip().lower()) == wanted), None)

    file, text = find_first((*FILE_COLUMNS, *(METADATA_COLUMNS if table in NAMES else ()))), find_first(TEXT_COLUMNS)
    return TableColumns(file, text, find_first(SPEAKER_COLUMNS), find_first(LANGUAGE_COLUMNS)) if file and text else None


def is_column_table(path: Path) -> bool:
    """Return whether the first line of a file that is not blank, or the first object of a JSON array, names the columns of such a table.
    Reads no more than its beginning, except for an array."""
    if path.suffix.lower() not in ENDINGS or path.name.lower() in UNCHECKED:
        return False
    try:
        with input_files.open_file(path) as file:
            head = decode_head(file.read(HEAD_BYTES)).split("\n")
    except OSError:  # a folder, or an unreadable file
        return False
    if path.suffix.lower() == ".json":
        return _is_array_of_rows(path, head)
    if path.suffix.lower() == ".jsonl":
        try:
            return _names_columns(strict_json.loads(next((line for line in head if line.strip()), "")))
        except ValueError:
            return False
    try:
        return find_columns(_split_header(path, head).names, path.name) is not None
    except csv.Error:
        return False


def _is_array_of_rows(path: Path, head: list[str]) -> bool:
    if not head[0].lstrip().startswith("["):
        return False
    try:
        value = strict_json.loads(read_text(path).text)
    except (ValueError, UserError):
        return False
    return isinstance(value, list) and bool(value) and _names_columns(value[0])


def _names_columns(row: JsonValue) -> bool:
    """Return whether a parsed row of JSON has a column for the file and one for its text."""
    return isinstance(row, dict) and find_columns([key for key, each in row.items() if isinstance(each, str | None)]) is not None


def parse_columns(path: Path, content: str) -> ColumnTable:
    """Return the rows of a table; those without a text are counted. Raises `UserError` with file and line for broken lines."""
    readers: dict[str, Callable[[Path, str], Iterator[tuple[int, Mapping[str, JsonValue]]]]]
    readers = {".jsonl": _read_jsonl, ".json": _read_json}
    rows = list(readers.get(path.suffix.lower(), _read_separated)(path, content))
    columns: TableColumns | None = None
    found: list[tuple[str, MetadataLine]] = []
    textless, broken = list[int](), list[int]()
    for number, row in rows:
        columns = columns or find_columns(list(row), path.name)
        if not any(value.strip() if isinstance(value, str) else value is not None for value in row.values()):
            textless.append(number)
            continue
        fields = [] if columns is None else [row.get(column) if column else None for column in columns]
        if len(fields) > SPEAKER and isinstance(fields[SPEAKER], int):
            fields[SPEAKER] = str(fields[SPEAKER])
        texts = [field or "" for field in fields if isinstance(field, str | None)]
        if columns is None or len(texts) < len(fields) or not texts[0].strip():
            raise UserError(f"{path}:{number}: expected the file and its text in columns like file_name and text, found {row!r:.80}")
        _require_whole_recording(path, number, row)
        file, text, speaker, language = (field.strip() for field in texts)
        if "\n" in text:
            broken.append(number)
            text = " ".join(text.split())
        if text and text not in NO_TEXT:
            found.append((file, MetadataLine(path, number, text, speaker or None, language or None)))
        else:
            textless.append(number)
    notes = [] if rows else [f"{path} has no rows after the names of its columns"]
    notes += _list_lines(path, "without a text, dropped", textless) + _list_lines(path, "with line breaks in the text, now spaces", broken)
    return ColumnTable(found, notes)


def _list_lines(path: Path, what: str, numbers: list[int]) -> list[str]:
    shown = ", ".join([*map(str, numbers[:SHOWN]), *["…"] * (len(numbers) > SHOWN)])
    return [f"{path}: {format_count(len(numbers), 'row')} {what} (line {shown})"] if numbers else []


def _require_whole_recording(path: Path, number: int, row: Mapping[str, JsonValue]) -> None:
    """Raises `UserError` for a row whose text is spoken in a part of its recording. Times beside a `source` are those of the longer
    recording from which the file was cut, as in our own exports."""
    if row.get("source"):
        return
    for name, value in row.items():
        known = name.strip().lower() if value not in (None, "") else ""
        if known in PART_COLUMNS and not (known == "offset" and str(value).strip().strip("0.") == ""):
            raise UserError(
                f"{path}:{number}: {name} = {value!r:.20}: the text belongs to a part of the recording; cut the recording there, or write "
                "a <name>.transcript.json with [{start, end, text}, …] for it"
            )


def _read_jsonl(path: Path, content: str) -> Iterator[tuple[int, dict[str, JsonValue]]]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = strict_json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not JSON ({strict_json.one_line(error)}); correct or remove the line") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}:{number}: expected a JSON object, found {type(value).__name__}; correct or remove the line")
        yield number, value


def _read_json(path: Path, content: str) -> Iterator[tuple[int, dict[str, JsonValue]]]:
    """Yield the entries of a JSON array, counted from 1."""
    for number, value in enumerate(strict_json.loads(content), start=1):
        if not isinstance(value, dict):
            raise UserError(f"{path}: entry {number}: expected a JSON object, found {type(value).__name__}; correct or remove the entry")
        yield number, value


def _read_separated(path: Path, content: str) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(sys.maxsize)
    lines = content.split("\n")
    try:
        header = _split_header(path, lines)
        _require_single_columns(path, header)
        records = list(read_records((f"{line}\n" for line in lines[header.line :]), header.delimiter, header.text, header.line + 1))
    except BrokenRecordError as error:
        raise UserError(f"{path}:{error.line}: not a table ({strict_json.one_line(error)}); correct its quotation marks") from None
    except csv.Error as error:
        raise UserError(f"{path}: its first line is not that of a table ({strict_json.one_line(error)}); correct the line") from None
    _require_single_rows(path, lines, header, records)
    records = _unquote_columns(records, len(header.names))
    for record in records:
        fields, more = record.fields[: len(header.names)], record.fields[len(header.names) :]
        if not record.fields or (len(record.fields) == 1 and not record.fields[0].strip()):
            continue  # a blank line
        if len(fields) != len(header.names) or any(field.strip() for field in more):
            raise UserError(
                f"{path}:{record.line}: {format_count(len(record.fields), 'column')}, but the first line names {len(header.names)}; "
                "correct the line"
            )
        yield record.line, dict(zip(header.names, fields, strict=True))


def _unquote_columns(records: list[Record], columns: int) -> list[Record]:
    """Return the records without the quotation marks that a program added: around fields with quotation marks, or around all of a
    column."""
    literal = [record.fields for record in records if record.literal and len(record.fields) == columns]
    whole = [all(is_quoted(fields[at]) or not fields[at] for fields in literal) for at in range(columns)]
    return [
        record._replace(fields=[unquote(each, at < columns and whole[at]) for at, each in enumerate(record.fields)])
        if record.literal
        else record
        for record in records
    ]


def _require_single_columns(path: Path, header: _Header) -> None:
    """Raises `UserError` if two columns have the name of one that is read."""
    names = [name.strip().lower() for name in header.names]
    for column in find_columns(header.names, path.name) or ():
        if column and names.count(column.strip().lower()) > 1:
            raise UserError(f"{path}:{header.line}: two columns are named {column!r}; rename one of them")


def _require_single_rows(path: Path, lines: list[str], header: _Header, records: list[Record]) -> None:
    """Raises `UserError` for a quotation that ends in another line if a line of it reads as a row of its own.

    A line that follows in a text with line breaks rarely has all columns, and something like the names of the other rows in the right one.
    """
    columns = find_columns(header.names, path.name)
    if columns is None or not any(record.lines > 1 for record in records):
        return
    at = header.names.index(columns.file)
    shapes = {_outline(record.fields[at]) for record in records if len(record.fields) > at}
    for record in records:
        for number in range(record.line + 1, record.line + record.lines):
            fields = lines[number - 1].split(header.delimiter)
            if len(fields) >= len(header.names) and _reads_as_name(fields, at, shapes):
                raise UserError(
                    f"{path}:{record.line}: a quotation begins here and includes line {number}, which reads as a row of its own "
                    f"({lines[number - 1]!r:.60}); write the quotation marks of the text twice, or end the quotation in its line"
                )


def _reads_as_name(fields: list[str], at: int, shapes: set[str]) -> bool:
    """Return whether a field looks like the names of recordings in other rows: in prose, a space follows a word and a comma."""
    name = fields[at].strip().strip('"')
    outline = _outline(name)
    follows = fields[at + 1] if at + 1 < len(fields) else "x"
    return has_sound_ending(name) or (outline in shapes and (outline != "a" or not follows.startswith(" ")))


def _outline(name: str) -> str:
    """Return the outline of a name: `LJ001-0002` → `a0-0`."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "0", name.strip()))


def _split_header(path: Path, lines: list[str]) -> _Header:
    """Return the first line that is not blank, or the one after Excel's mark. Raises `csv.Error`."""
    filled = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    number, line = next(filled, (1, ""))
    if mark := find_excel_mark(line):
        number, line = next(filled, (number, ""))
    # Spreadsheets write a semicolon where the comma is the decimal mark; some tables are separated by `|`
    delimiter = mark or ("\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=line.count))
    return _Header(number, line, delimiter, next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter), []))
