"""Tables of recordings and texts whose columns are named: CSV, TSV and JSONL files with a column for the file and one for its text.

AudioFolder's metadata.csv and metadata.jsonl (`file_name`, and `text` or `transcription`), Common Voice's validated.tsv (`path`,
`sentence`, `client_id`, `locale`), NeMo's manifests (`audio_filepath`, `text`).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from data_prep.recordings.ljspeech_metadata import MetadataLine
from data_prep.recordings.text_encoding import decode_head
from finetune.errors import UserError
from finetune.storage import input_files, strict_json

ENDINGS = (".csv", ".tsv", ".jsonl")
FILE_COLUMNS = ("file_name", "path", "audio", "audio_filepath", "audio_path", "audio_file", "filename", "file", "wav")
TEXT_COLUMNS = ("text", "sentence", "transcription", "transcript", "normalized_text")
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id", "speaker_name")
LANGUAGE_COLUMNS = ("language", "locale", "lang")
UNCHECKED = ("other.tsv", "invalidated.tsv", "reported.tsv")
"""Tables of Common Voice whose sentences nobody confirmed, or that somebody rejected."""
PART_COLUMNS = ("offset", "start", "start_time", "start_seconds", "start_sec", "begin", "begin_time")
"""Where in the recording the text begins: such a row is not the text of the whole recording."""
HEAD_BYTES = 1 << 16


class TableColumns(NamedTuple):
    """The columns of a table that are read; None: it has no such column."""

    file: str
    text: str
    speaker: str | None
    language: str | None


SPEAKER = TableColumns._fields.index("speaker")


def find_columns(names: list[str]) -> TableColumns | None:
    """The columns that are read among all columns of a table; None if there is none for the file, or none for the text."""

    def find_first(known: tuple[str, ...]) -> str | None:
        return next((name for wanted in known for name in names if name.strip().lower() == wanted), None)

    file, text = find_first(FILE_COLUMNS), find_first(TEXT_COLUMNS)
    return TableColumns(file, text, find_first(SPEAKER_COLUMNS), find_first(LANGUAGE_COLUMNS)) if file and text else None


def is_column_table(path: Path) -> bool:
    """Whether the first line of a file that is not blank names the columns of such a table. Reads no more than its beginning."""
    if path.suffix.lower() not in ENDINGS or path.name.lower() in UNCHECKED:
        return False
    try:
        with input_files.open_file(path) as file:
            head = next((line for line in decode_head(file.read(HEAD_BYTES)).split("\n") if line.strip()), "")
    except OSError:  # a folder, or not readable
        return False
    if path.suffix.lower() == ".jsonl":
        try:
            value = strict_json.loads(head)
        except ValueError:
            return False
        return isinstance(value, dict) and find_columns([key for key, each in value.items() if isinstance(each, str | None)]) is not None
    try:
        return find_columns(_split_header(path, head)) is not None
    except csv.Error:
        return False


def parse_columns(path: Path, content: str) -> Iterator[tuple[str, MetadataLine]]:
    """Yield (path of the recording as the table has it, its line). Lines without a text are left out.

    Raises `UserError` with file and line for broken lines.
    """
    rows = _read_jsonl(path, content) if path.suffix.lower() == ".jsonl" else _read_separated(path, content)
    columns: TableColumns | None = None
    for number, row in rows:
        columns = columns or find_columns(list(row))
        fields = [] if columns is None else [row.get(column) if column else None for column in columns]
        if len(fields) > SPEAKER and isinstance(fields[SPEAKER], int):
            fields[SPEAKER] = str(fields[SPEAKER])
        if columns is None or not all(isinstance(field, str | None) for field in fields) or not (fields[0] or "").strip():
            raise UserError(f"{path}:{number}: expected the file and its text in columns like file_name and text, found {row!r:.80}")
        _require_whole_recording(path, number, row)
        file, text, speaker, language = ((field or "").strip() for field in fields)
        if text:
            yield file, MetadataLine(path, number, text, speaker or None, language or None)


def _require_whole_recording(path: Path, number: int, row: dict[str, Any]) -> None:
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


def _read_jsonl(path: Path, content: str) -> Iterator[tuple[int, dict[str, Any]]]:
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


def _read_separated(path: Path, content: str) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(sys.maxsize)
    lines = content.split("\n")
    first = next((at for at, line in enumerate(lines) if line.strip()), 0)
    try:
        header = _split_header(path, lines[first])
    except csv.Error as error:
        raise UserError(f"{path}:{first + 1}: not a table ({strict_json.one_line(error)}); correct the line") from None
    quoted = path.suffix.lower() != ".tsv"  # Common Voice writes sentences with single quotation marks as they are
    reader = csv.reader(
        (f"{line}\n" for line in lines[first + 1 :]),
        delimiter=_detect_delimiter(path, lines[first]),
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=True,
    )
    begins = first + 2
    try:
        for record in reader:
            number, begins = begins, reader.line_num + first + 2
            if any(field.strip() for field in record):
                if len(record) != len(header):
                    raise UserError(f"{path}:{number}: {len(record)} columns, but the first line names {len(header)}; correct the line")
                yield number, dict(zip(header, record if quoted else map(_unquote, record), strict=True))
    except csv.Error as error:
        raise UserError(f"{path}:{begins}: not a table ({strict_json.one_line(error)}); correct the line") from None


def _unquote(field: str) -> str:
    """A field that was quoted because of the quotation marks in it, as some programs write TSV."""
    inner = field[1:-1]
    is_quoted = len(field) > 1 and field[0] == field[-1] == '"' and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_quoted else field


def _split_header(path: Path, line: str) -> list[str]:
    return next(csv.reader([line.rstrip("\r\n")], delimiter=_detect_delimiter(path, line)), [])


def _detect_delimiter(path: Path, line: str) -> str:
    """Spreadsheets write a semicolon where the comma is the decimal mark; some tables are separated by `|`."""
    return "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=line.count)
