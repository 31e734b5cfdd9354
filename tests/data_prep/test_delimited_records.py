"""Every line of a table is in one record, whatever its quotation marks."""

from __future__ import annotations

import csv
import io
import random

import pytest

from overtone.data_prep.delimited_records import BrokenRecordError, Record, is_quoted, read_records, unquote


def read(content: str, delimiter: str) -> list[Record]:
    header, *lines = content.split("\n")
    return list(read_records((f"{line}\n" for line in lines), delimiter, header, 2))


def read_fields(content: str, delimiter: str) -> list[list[str]]:
    return [[unquote(field) for field in record.fields] if record.literal else record.fields for record in read(content, delimiter)]


@pytest.mark.parametrize("delimiter", "\t|")
def test_a_quotation_over_two_rows_stays_in_its_rows(delimiter: str) -> None:
    content = 'a|t\n1|"My sister left.\n2|Yes."\n3|5" nails "here"\n4|"He said ""no""."\n5|"Whole."'.replace("|", delimiter)
    assert read_fields(content, delimiter) == [
        ["1", '"My sister left.'],
        ["2", 'Yes."'],
        ["3", '5" nails "here"'],
        ["4", 'He said "no".'],
        ["5", '"Whole."'],
    ]


@pytest.mark.parametrize("delimiter", ",;\t|")
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_what_a_writer_of_tables_writes_is_read_back(delimiter: str, quoting: int) -> None:
    """Fields with line breaks, quotation marks, and commas; and the records account for every line."""
    chosen = random.Random(1)
    pieces = ["one", " two", '"', "\n", "\n\n", ", ", "; ", "é"]
    rows = [[str(number), "x" + "".join(chosen.choices(pieces, k=chosen.randrange(1, 7))), "end"] for number in range(300)]
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows([["id", "text", "more"], *rows])
    records = read(written.getvalue().removesuffix("\n"), delimiter)
    assert [[unquote(field) for field in record.fields] if record.literal else record.fields for record in records] == rows
    assert sum(record.lines for record in records) == written.getvalue().count("\n") - 1
    assert [record.line for record in records[1:]] == [record.line + record.lines for record in records[:-1]]


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ('a,t\n1,x\n2,"y\n3,z', 3, "its quotation has no end"),
        ('a,t\n1,x\n2,"y" z\n', 3, "',' expected after '\"'"),
        ('a,t\n1,"x\n2,"y"\n', 2, "',' expected after '\"'"),
    ],
)
def test_broken_quotations_are_named_with_their_line(content: str, line: int, problem: str) -> None:
    with pytest.raises(BrokenRecordError) as caught:
        read(content, ",")
    assert (caught.value.line, str(caught.value)) == (line, problem)


def test_a_quoted_header_says_that_quotation_marks_are_no_text() -> None:
    assert read_fields('"a"|"t"\n"1"|"x | y\nz"', "|") == [["1", "x | y\nz"]]
    assert read_fields('a|t\n1|"x | y"', "|") == [["1", "x | y"]], "the line has too many columns otherwise"
    assert [record.fields for record in read('a|t\n1|"x\n\n2|y|z', "|")] == [["1", '"x'], [""], ["2", "y", "z"]]


def test_quotations_of_programs() -> None:
    assert unquote('"a"', always=True) == "a" and unquote('"a"') == '"a"' and unquote('""') == "" and unquote('"a""') == '"a""'
    assert not is_quoted('"') and not is_quoted('"a" b "c"')
