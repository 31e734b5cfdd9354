"""Records of tables whose columns are separated by a character: CSV, TSV, and lines with `|`.

Commas and semicolons: RFC 4180, where a quoted field may hold line breaks. Tabs and `|`: corpora write sentences with unpaired quotation
marks into such tables, so a line that has all columns is one record, and its quotation marks are text. Each record has its first line and
its number of lines, so that a caller can account for every line of a file.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

LITERAL = ("\t", "|")
"""Separators of tables whose quotation marks are text unless the header is quoted."""
EXCEL_MARK = re.compile(r'"?sep=(.)"?')
MOST_LINES = 1000
"""Lines of a record in a table with literal quotation marks: a longer search for the end of a quotation finds that of another one."""


class Record(NamedTuple):
    """One record: its first line, counted from 1, its number of lines, and its fields."""

    line: int
    lines: int
    fields: list[str]
    literal: bool = False
    """True if quotation marks are still in the fields: `unquote` removes those that a program added."""


class BrokenRecordError(ValueError):
    """A record that breaks the rules of quotation. `line`: where it begins."""

    def __init__(self, line: int, problem: str) -> None:
        self.line = line
        super().__init__(problem)


def read_records(lines: Iterable[str], delimiter: str, header: str, first: int) -> Iterator[Record]:
    """Yield the records of the lines after the header. `first`: number of the first of these lines, which end with a line break.

    Raises `BrokenRecordError` if a quotation does not end, or ends inside a field.
    """
    if delimiter in LITERAL and not header.lstrip().startswith('"'):
        return _read_literal(iter(lines), delimiter, header.count(delimiter) + 1, first)
    return _read_quoted(lines, delimiter, first)


def find_excel_mark(line: str) -> str:
    """Return the separator that a first line `sep=;` names to Excel; empty if it is another line."""
    found = EXCEL_MARK.fullmatch(line.strip("\ufeff \r\n"))
    return found[1] if found else ""


def is_quoted(field: str) -> bool:
    """Return whether a field is one quotation; the quotation marks inside are doubled."""
    return len(field) > 1 and field[0] == field[-1] == '"' and '"' not in field[1:-1].replace('""', "")


def unquote(field: str, always: bool = False) -> str:
    """Return a field without the quotation that some programs write because of the quotation marks in it. Other quotation marks are text,
    unless `always` says that this program quotes the whole column."""
    if not is_quoted(field) or not (always or len(field) == 2 or '""' in field[1:-1]):
        return field
    return field[1:-1].replace('""', '"')


def _read_quoted(lines: Iterable[str], delimiter: str, first: int) -> Iterator[Record]:
    reader, begins = csv.reader(lines, delimiter=delimiter, strict=True), first
    try:
        for fields in reader:
            number, begins = begins, first + reader.line_num
            yield Record(number, begins - number, fields)
    except csv.Error as error:
        problem = "its quotation has no end" if "end of data" in str(error) else str(error)
        raise BrokenRecordError(begins, problem) from None


def _read_literal(lines: Iterator[str], delimiter: str, columns: int, first: int) -> Iterator[Record]:
    number, waiting = first, deque[str]()
    while (line := waiting.popleft() if waiting else next(lines, None)) is not None:
        taken = [line]
        fields = line.rstrip("\r\n").split(delimiter)
        if '"' in line and (len(fields) != columns or any(map(_is_open, fields))):
            following = _take_continuation(taken, waiting, lines, delimiter, columns)
            quoted = _read_quoted_record(chain([line], following), delimiter)
            if quoted is not None and len(quoted.fields) == columns:
                waiting.extendleft(reversed(taken[quoted.lines :]))
                yield quoted._replace(line=number)
                number += quoted.lines
                continue
            waiting.extendleft(reversed(taken[1:]))
        yield Record(number, 1, fields, literal=True)
        number += 1


def _is_open(field: str) -> bool:
    """Return whether a quotation begins with the field and does not end in it."""
    return field.startswith('"') and '"' not in field[1:].replace('""', "")


def _take_continuation(taken: list[str], waiting: deque[str], lines: Iterator[str], delimiter: str, columns: int) -> Iterator[str]:
    """Yield the lines that may continue the one in `taken`, and append all that were read to it: if that line has all columns, up to the
    next one that has."""
    is_whole = taken[0].count(delimiter) + 1 == columns
    while len(taken) < MOST_LINES and (line := waiting.popleft() if waiting else next(lines, None)) is not None:
        taken.append(line)
        if is_whole and line.count(delimiter) + 1 == columns:
            return
        yield line


def _read_quoted_record(lines: Iterator[str], delimiter: str) -> Record | None:
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        fields = next(reader)
    except csv.Error:
        return None
    return Record(0, reader.line_num, fields)
