"""The rows of a source, one at a time and each with its place."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from data_prep.text_arrow import parquet, saved_by_datasets
from data_prep.text_shapes import SHAPES
from data_prep.text_sources import COMMAS, DATASET, DOCUMENT, GZIP, LINES, PARQUET, TABS, Found, Source
from finetune.errors import UserError
from finetune.strict_json import loads, one_line

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def rows(source: Source) -> Iterator[Found]:
    """Every row. Raises `UserError` if the file as a whole cannot be read."""
    try:
        yield from READERS[source.kind](source)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{source.path} cannot be read ({one_line(error)})") from None


def _opened(source: Source) -> io.BufferedReader:
    """The file, uncompressed."""
    if source.path.suffix.lower() == GZIP:
        return io.BufferedReader(gzip.GzipFile(source.path))
    return source.path.open("rb")


def _lines(source: Source) -> Iterator[Found]:
    with _opened(source) as file:
        for number, raw in enumerate(file, start=1):
            if number == 1 and raw.startswith(UTF_16):
                raise UserError(f"{source.path} is in UTF-16; save it in UTF-8")
            if raw.strip():
                yield _line(f"{source.name}:{number}", raw)


def _line(place: str, raw: bytes) -> Found:
    try:
        return _row(place, loads(raw))
    except ValueError as error:
        return Found(place, None, f"not JSON that can be kept ({one_line(error)})")


def _row(place: str, value: Any) -> Found:
    """A key that holds null is no key: so it is in tables, and whoever turns a table into JSON writes nulls."""
    if not isinstance(value, dict):
        return Found(place, None, f"not an object in braces but {type(value).__name__}")
    return Found(place, {key: inner for key, inner in value.items() if inner is not None})


def _document(source: Source) -> Iterator[Found]:
    """A whole document in memory. Many a `.json` has one object a line instead, since that is what some libraries write."""
    with _opened(source) as file:
        raw = file.read()
    try:
        found = _array_of(loads(raw))
    except ValueError as error:
        if raw.lstrip().startswith(b"{") and str(error).startswith("Extra data"):
            yield from _lines(source)
            return
        raise UserError(f"{source.path} is not JSON that can be kept ({one_line(error)})") from None
    if found is None:
        wanted = "an array of rows, an object with one such array, or one object a line"
        raise UserError(f"{source.path} must hold {wanted}. To leave this file out, name those to read")
    for number, row in enumerate(found, start=1):
        yield _row(f"{source.name}:{number}", row)


def _array_of(whole: Any) -> list[Any] | None:
    """The rows of a document: it is their array, it holds just one array, or it is a row itself."""
    if not isinstance(whole, dict):
        return whole if isinstance(whole, list) else None
    arrays = [value for value in whole.values() if isinstance(value, list)]
    if _is_row(whole) and not any(map(_is_row, chain.from_iterable(arrays))):
        return [whole]
    return arrays[0] if len(arrays) == 1 else None


def _is_row(value: Any) -> bool:
    return isinstance(value, dict) and any(shape.keys <= value.keys() for shape in SHAPES.values())


def _table(source: Source) -> Iterator[Found]:
    csv.field_size_limit(sys.maxsize)
    with _opened(source) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as file:
        try:
            first = file.readline()
            mark = "\t" if source.kind == TABS else _mark_of(first)
            yield from _records(source, csv.reader(chain([first], file), delimiter=mark, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{source.path} is not a table of text in UTF-8 ({one_line(error)})") from None


def _mark_of(first: str) -> str:
    """What stands between the columns: spreadsheets write a semicolon where the comma is for decimals. The one that makes most columns."""
    return max(",;\t", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))


def _records(source: Source, reader: Any) -> Iterator[Found]:
    header: list[str] = next(reader, [])
    if len(set(header)) < len(header):
        raise UserError(f"{source.path}: its first line names a column twice ({', '.join(header):.200})")
    begins = reader.line_num + 1
    for record in reader:
        place, begins = f"{source.name}:{begins}", reader.line_num + 1
        if len(record) == len(header):
            yield Found(place, dict(zip(header, record, strict=True)))
        elif record:
            yield Found(place, None, f"it has {len(record)} columns, and the header has {len(header)}")


READERS: dict[str, Callable[[Source], Iterator[Found]]] = {
    LINES: _lines,
    DOCUMENT: _document,
    COMMAS: _table,
    TABS: _table,
    PARQUET: parquet,
    DATASET: saved_by_datasets,
}
