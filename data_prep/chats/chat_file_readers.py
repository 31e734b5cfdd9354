"""Readers for conversation files (JSONL, JSON, CSV, TSV, Parquet, saved datasets): yield rows with their locations."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from pydantic import JsonValue

from overtone.data_prep.chats import whatsapp_export
from overtone.data_prep.chats.arrow_tables import read_parquet, read_saved_dataset
from overtone.data_prep.chats.chat_file_search import (
    COMMAS,
    DATASET,
    DOCUMENT,
    GZIP,
    LINES,
    PARQUET,
    TABS,
    TEXT,
    WHATSAPP,
    ChatSource,
    FoundRow,
)
from overtone.data_prep.chats.conversation_formats import SHAPES
from overtone.data_prep.chats.raw_texts import RawTexts, read_document, split_row
from overtone.data_prep.chats.whatsapp_export import DEFAULT_PAUSE_HOURS
from overtone.data_prep.delimited_records import LITERAL, BrokenRecordError, find_excel_mark, read_records, unquote
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files
from overtone.finetune.storage.strict_json import loads, one_line

LARGEST_DOCUMENT = 2**30
"""Bytes of a JSON document, after decompression, 1 GiB: the largest published collections of chats have 0.7 GB. The rows of other files are
read one after the other."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class ReaderOptions:
    """Settings of the readers."""

    columns: frozenset[str] = frozenset()
    """Further columns of tables whose values are read."""
    person: str = ""
    """The person whose messages in exported chats are the answers."""
    pause_hours: float = DEFAULT_PAUSE_HOURS
    """A longer pause in an exported chat begins another conversation."""
    texts: RawTexts | None = None
    """If given, rows are pieces of texts."""


def read_rows(source: ChatSource, options: ReaderOptions = ReaderOptions()) -> Iterator[FoundRow]:
    """Yield every row of a source. Raises `UserError` if the file as a whole cannot be read."""
    for found in _read_whole_rows(source, options):
        yield from (found,) if options.texts is None else split_row(found, options.texts)


def _read_whole_rows(source: ChatSource, options: ReaderOptions) -> Iterator[FoundRow]:
    try:
        if source.kind == WHATSAPP:
            yield from _read_exported_chat(source, options)
        elif source.kind == TEXT:
            yield from read_document(source, RawTexts().column if options.texts is None else options.texts.column)
        elif source.kind in ARROW:
            yield from ARROW[source.kind](source, options.columns)
        else:
            yield from READERS[source.kind](source)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{source.path} cannot be read ({one_line(error)})") from None


def _read_exported_chat(source: ChatSource, options: ReaderOptions) -> Iterator[FoundRow]:
    found = whatsapp_export.read_conversations(source.path, options.person, options.pause_hours)
    if not found.conversations:
        yield FoundRow(f"{source.name}:1", None, f"no answer of {options.person} to a message of another person", found.left_out)
    for number, conversation in enumerate(found.conversations):
        row: dict[str, object] = {"messages": conversation.messages}
        yield FoundRow(f"{source.name}:{conversation.line}", row, left_out=found.left_out if number == 0 else {})


def _open_source(source: ChatSource) -> io.BufferedReader:
    """Open a source for reading, and decompress it if needed."""
    if source.path.suffix.lower() == GZIP:
        return io.BufferedReader(gzip.GzipFile(fileobj=input_files.open_file(source.path)))
    return input_files.open_file(source.path)


def _read_jsonl(source: ChatSource) -> Iterator[FoundRow]:
    with _open_source(source) as file:
        for number, raw in enumerate(input_files.split_lines(file, source.path), start=1):
            if number == 1 and raw.startswith(UTF_16):
                raise UserError(f"{source.path} is in UTF-16; save it in UTF-8")
            if raw.strip():
                yield _parse_line(f"{source.name}:{number}", raw)


def _parse_line(place: str, raw: bytes) -> FoundRow:
    try:
        return _make_row(place, loads(raw))
    except ValueError as error:
        return FoundRow(place, None, f"not JSON that can be kept ({one_line(error)})")


def _make_row(place: str, value: JsonValue) -> FoundRow:
    """Make a row of a parsed value. Keys with null are dropped: tables converted to JSON contain null for missing values."""
    if not isinstance(value, dict):
        return FoundRow(place, None, f"not an object in braces but {type(value).__name__}")
    return FoundRow(place, {key: inner for key, inner in value.items() if inner is not None})


def _read_json(source: ChatSource) -> Iterator[FoundRow]:
    """Read a JSON document in memory. Many `.json` files have one object per line instead, which is read too."""
    with _open_source(source) as file:
        raw = file.read(LARGEST_DOCUMENT + 1)
    if len(raw) > LARGEST_DOCUMENT:
        raise UserError(f"{source.path} is one document of more than {LARGEST_DOCUMENT:,} bytes; write it with one row per line (.jsonl)")
    try:
        found = _find_row_array(loads(raw))
    except ValueError as error:
        if raw.lstrip().startswith(b"{") and str(error).startswith("Extra data"):
            yield from _read_jsonl(source)
            return
        raise UserError(f"{source.path} is not JSON that can be kept ({one_line(error)})") from None
    if found is None:
        wanted = "an array of rows, an object with one such array, or one object a line"
        raise UserError(f"{source.path} must hold {wanted}. To skip this file, list the files to read instead of the folder")
    for number, row in enumerate(found, start=1):
        yield _make_row(f"{source.name}:{number}", row)


def _find_row_array(whole: JsonValue) -> list[JsonValue] | None:
    """Return the rows of a document: an array, the only array of an object, or a single row. None if none applies."""
    if not isinstance(whole, dict):
        return whole if isinstance(whole, list) else None
    arrays = [value for value in whole.values() if isinstance(value, list)]
    if _is_row(whole) and not any(map(_is_row, chain.from_iterable(arrays))):
        return [whole]
    return arrays[0] if len(arrays) == 1 else None


def _is_row(value: JsonValue) -> bool:
    return isinstance(value, dict) and any(shape.keys <= value.keys() for shape in SHAPES.values())


def _read_table(source: ChatSource) -> Iterator[FoundRow]:
    csv.field_size_limit(input_files.LONGEST_LINE)
    with _open_source(source) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as file:
        try:
            yield from _read_records(source, file)
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{source.path} is not a table of text in UTF-8 ({one_line(error)})") from None
        except BrokenRecordError as error:
            raise UserError(
                f"{source.path}:{error.line} is not a row of a table ({one_line(error)}); correct its quotation marks"
            ) from None


@dataclass
class RecordLines:
    """Lines that were read and belong to no finished record yet: those of the current record, which may have many."""

    lines: deque[str] = field(default_factory=deque)
    characters: int = 0

    def take(self, count: int) -> list[str]:
        """Remove and return the lines of a finished record."""
        taken = [self.lines.popleft() for _ in range(count)]
        self.characters -= sum(map(len, taken))
        return taken


def _measure_lines(source: ChatSource, file: io.TextIOWrapper, read: RecordLines) -> Iterator[str]:
    """Yield the lines of a table. Raises `UserError` for a record that is longer than a line of another file may be."""
    number, most = 1, input_files.LONGEST_LINE
    while line := file.readline(most + 1):
        read.lines.append(line)
        read.characters += len(line)
        if read.characters > most:
            raise UserError(f"{source.name}:{number}: the record has more than {most:,} characters; is a quotation mark missing?")
        yield line
        number += 1


def _read_records(source: ChatSource, file: io.TextIOWrapper) -> Iterator[FoundRow]:
    read = RecordLines()
    lines = _measure_lines(source, file, read)
    first, above = next(lines, ""), 1
    given = find_excel_mark(first)
    if given:
        first, above = next(lines, ""), 2
    # Else the separator that gives most columns: spreadsheets write a semicolon where the comma is the decimal mark.
    widest = max(",;\t", key=lambda each: len(next(csv.reader([first], delimiter=each), [])))
    mark = given or ("\t" if source.kind == TABS else widest)
    reader = csv.reader(chain([first], lines), delimiter=mark, strict=True)
    header: list[str] = next(reader, [])
    if len(set(header)) < len(header):
        raise UserError(f"{source.path}: its first line names a column twice ({', '.join(header):.200})")
    above += reader.line_num - 1
    read.take(len(read.lines))
    for record in read_records(lines, mark, first, above + 1):
        own, place = read.take(record.lines), f"{source.name}:{record.line}"
        fields = [unquote(each) for each in record.fields] if record.literal else record.fields
        if not any(fields) and len(fields) < 2:
            continue  # a blank line
        if len(fields) != len(header):
            yield FoundRow(place, None, f"it has {len(fields)} columns, and the header has {len(header)}")
        elif mark not in LITERAL and _hold_rows(own, mark, len(header)):
            yield FoundRow(
                place, None, f"a quotation begins here and includes lines that read as rows of their own: {own[1].strip()!r:.60}"
            )
        else:
            yield FoundRow(place, dict(zip(header, fields, strict=True)))


def _hold_rows(lines: list[str], mark: str, columns: int) -> bool:
    """Return whether each of the lines of one record reads as a row: it has all columns, and no space after the separators as in prose."""
    rows = [line.rstrip("\r\n").split(mark) for line in lines]
    return columns > 1 and len(rows) > 1 and all(len(row) == columns and not any(each[:1] == " " for each in row[1:]) for row in rows)


READERS: dict[str, Callable[[ChatSource], Iterator[FoundRow]]] = {
    LINES: _read_jsonl,
    DOCUMENT: _read_json,
    COMMAS: _read_table,
    TABS: _read_table,
}
ARROW: dict[str, Callable[[ChatSource, frozenset[str]], Iterator[FoundRow]]] = {PARQUET: read_parquet, DATASET: read_saved_dataset}
