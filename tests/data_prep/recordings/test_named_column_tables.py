"""Tables with named columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.recordings.named_column_tables import is_column_table, parse_columns
from overtone.data_prep.recordings.text_encoding import read_text
from overtone.finetune.errors import UserError

TABLES = {
    "metadata.csv": 'file_name,text\na.wav,"One, two."\nsub/b.wav,"He said ""no""."\n',
    "semicolons.csv": 'path;transcription\na.wav;One, two.\nsub/b.wav;"He said ""no""."\n',
    "metadata.jsonl": '{"file_name": "a.wav", "text": "One, two."}\n\n{"file_name": "sub/b.wav", "text": "He said \\"no\\"."}\n',
    "manifest.jsonl": '{"audio_filepath": "a.wav", "text": "One, two."}\n{"audio_filepath": "sub/b.wav", "text": "He said \\"no\\"."}\n',
    "project.json": (
        '[{"audio": "a.wav", "id": 1, "transcription": "One, two."}, {"audio": "sub/b.wav", "transcription": "He said \\"no\\"."}]'
    ),
    "spoken.csv": 'File Name,Text\na.wav,"One, two."\nsub/b.wav,"He said ""no""."\n',
    "train.tsv": 'client_id\tpath\tsentence\nx\ta.wav\tOne, two.\nx\tsub/b.wav\t"He said ""no""."\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_one_table_in_every_form_has_the_same_texts(name: str, tmp_path: Path) -> None:
    (path := tmp_path / name).write_text("\ufeff" * (name == "metadata.csv") + TABLES[name])
    assert is_column_table(path)
    found = dict(parse_columns(path, read_text(path).text).rows)
    assert {file: line.text for file, line in found.items()} == {"a.wav": "One, two.", "sub/b.wav": 'He said "no".'}


def test_common_voice_names_speakers_and_locales_and_its_unbalanced_quotes_are_kept() -> None:
    content = 'client_id\tpath\tsentence\tup_votes\tlocale\n8f\tcv_1.mp3\tOh " dear.\t2\tpt-BR\n9a\tcv_2.mp3\t\t2\tpt\n'
    found = parse_columns(Path("validated.tsv"), content)
    assert found.notes == ["validated.tsv: 1 row without a text, dropped (line 3)"]
    ((name, line),) = found.rows
    assert (name, line.line, line.text, line.speaker, line.language) == ("cv_1.mp3", 2, 'Oh " dear.', "8f", "pt-BR")


def test_other_files_are_no_tables(tmp_path: Path) -> None:
    for name, content in (
        ("other.tsv", TABLES["train.tsv"]),
        ("a.csv", "name,text\na,b\n"),
        ("b.csv", "a|b\n"),
        ("c.jsonl", '{"messages": []}\n'),
        ("d.jsonl", "broken"),
        ("e.txt", "file_name,text"),
        ("f.tsv", "start\tend\ttext\n"),
        ("h.json", '[{"start": 0, "end": 1, "text": "x"}]'),
        ("i.json", '{"audio": "a.wav", "text": "x"}'),
        ("j.json", "[]"),
        ("k.json", "[broken"),
        ("g.jsonl", '{"audio": {"bytes": ""}, "text": "x"}'),
    ):
        (tmp_path / name).write_text(content)
        assert not is_column_table(tmp_path / name)
    assert not is_column_table(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "file_name,text\na.wav,One, two.\n", "a.csv:2: 3 columns, but the first line names 2"),
        ("a.csv", 'file_name,text\na.wav,"One\n', "a.csv:2: not a table (its quotation has no end)"),
        ("a.csv", 'file_name,text\na.wav,"One" two\n', "a.csv:2: not a table"),
        ("a.csv", "file_name,text\na.wav\n", "a.csv:2: 1 column, but the first line names 2"),
        ("a.csv", "file_name,text,text\na.wav,One.,Two.\n", "a.csv:1: two columns are named 'text'"),
        ("a.csv", "file_name,text\n,One\n", "a.csv:2: expected the file and its text"),
        ("a.jsonl", '{"file_name": "a.wav", "text": "x"}\n{"text": "y"}', "a.jsonl:2: expected the file and its text"),
        ("a.jsonl", '{"file_name": "a.wav", "text": "x"}\n[', "a.jsonl:2: not JSON"),
        ("a.json", '[{"file_name": "a.wav", "text": "x"}, 1]', "a.json: entry 2: expected a JSON object, found int"),
        ("a.jsonl", '{"file_name": "a.wav", "text": "x"}\n[1]', "a.jsonl:2: expected a JSON object, found list"),
    ],
)
def test_broken_lines_are_named(name: str, content: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_columns(Path(name), content)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"file_name,text\ra.wav,One.\r"),
        ("a.csv", b"\n\nfile_name,text\na.wav,One.\n"),
        ("a.csv", "file_name,text\na.wav,One.\n".encode("utf-16")),
        ("a.csv", b"\xef\xbb\xbfsep=;\r\nfile_name;text\r\na.wav;One.\r\n"),
        ("a.csv", b'"sep=,"\nfile_name,text,,\na.wav,One.,,\n,,,\n'),
        ("a.csv", b"file_name,text\na.wav,One.,,"),
        ("a.tsv", b'file_name\ttext\na.wav\t"One."'),
        ("metadata.csv", b"id|text\na.wav|One."),
        ("project-1.csv", b'annotation_id,annotator,audio,id,transcription\n1,1,a.wav,7,"One."\n'),
        ("a.jsonl", b'\n{"file_name": "b.wav", "text": null}\n{"file_name": "a.wav", "text": "One.", "speaker": 1}\n'),
    ],
)
def test_tables_of_other_programs(name: str, content: bytes, tmp_path: Path) -> None:
    (path := tmp_path / name).write_bytes(content)
    assert is_column_table(path)
    assert [(file, line.text) for file, line in parse_columns(path, read_text(path).text).rows] == [("a.wav", "One.")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"audio_filepath": "a.wav", "text": "x", "offset": 0.0}\n{"audio_filepath": "a.wav", "text": "y", "offset": 10.0}'),
        ("a.csv", "file,Start,end,text\n,,,\na.wav,0,2,first\n"),
    ],
)
def test_texts_of_a_part_of_a_recording_are_refused(name: str, content: str) -> None:
    with pytest.raises(UserError, match="the text belongs to a part of the recording; cut the recording there"):
        parse_columns(Path(name), content)


OVER_TWO_ROWS = 'audio|text\n00|One.\n01|"My sister left.\n02|Yes of course."\n03|Three.\n'


@pytest.mark.parametrize("delimiter", "|\t")
def test_a_quotation_that_opens_in_one_row_and_closes_in_the_next(delimiter: str) -> None:
    """A dialogue of an audiobook: each row keeps its own text."""
    found = parse_columns(Path("metadata.tsv" if delimiter == "\t" else "metadata.csv"), OVER_TWO_ROWS.replace("|", delimiter))
    assert [line.text for _, line in found.rows] == ["One.", '"My sister left.', 'Yes of course."', "Three."]
    assert found.notes == []


@pytest.mark.parametrize("delimiter", ",;")
@pytest.mark.parametrize(
    ("names", "swallowed"),
    [
        (("00", "01", "02", "03"), "02"),
        (("one.wav", "two.wav", "three.wav", "four.wav"), "three.wav"),
        (("one", "two", "three", "four"), "three"),
        (("LJ001-0001", "LJ001-0002", "LJ001-0003", "LJ001-0004"), "LJ001-0003"),
    ],
)
def test_a_row_inside_the_quotation_of_another_is_named(delimiter: str, names: tuple[str, ...], swallowed: str) -> None:
    content = 'audio|text\n{}|One.\n{}|"My sister left.\n{}|Yes of course."\n{}|Three.\n'.format(*names)
    with pytest.raises(UserError, match=f"metadata.csv:3: a quotation begins here and includes line 4, .*{swallowed}"):
        parse_columns(Path("metadata.csv"), content.replace("|", delimiter))


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t")])
def test_texts_with_line_breaks_are_read_and_counted(name: str, delimiter: str) -> None:
    rows = ["file_name|text", 'one.wav|"First, of all,\nsecond, third."', "two.wav|Plain.", 'three.wav|"A ""b""\n\nc"']
    found = parse_columns(Path(name), "\n".join(rows).replace("|", delimiter))
    assert [(file, line.line, line.text) for file, line in found.rows] == [
        ("one.wav", 2, "First, of all, second, third."),
        ("two.wav", 4, "Plain."),
        ("three.wav", 5, 'A "b" c'),
    ]
    assert found.notes == [f"{name}: 2 rows with line breaks in the text, now spaces (line 2, 5)"]


def test_rows_that_give_no_text_are_counted() -> None:
    found = parse_columns(Path("a.csv"), "file_name,text\n\na.wav,\n,\nb.wav,B.")
    assert ([line.line for _, line in found.rows], found.notes) == ([5], ["a.csv: 2 rows without a text, dropped (line 3, 4)"])
    errors = parse_columns(Path("a.csv"), "file_name,text\na.wav,#NAME?\nb.wav,nan\nc.wav,Nan.\n")
    assert ([line.text for _, line in errors.rows], errors.notes) == (["Nan."], ["a.csv: 2 rows without a text, dropped (line 2, 3)"])
    assert parse_columns(Path("a.csv"), "file_name,text\n").notes == ["a.csv has no rows after the names of its columns"]
