"""Which line of which table belongs to a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.recordings.recording_names import RecordingNames
from overtone.data_prep.recordings.transcript_table_lookup import TranscriptTables, list_tables, read_tables
from overtone.finetune.errors import UserError


def match(folder: Path, *names: str) -> TranscriptTables:
    tables = read_tables(folder)
    tables.match(RecordingNames(folder, [folder / name for name in names]))
    return tables


def find_texts(folder: Path, *names: str) -> list[list[str]]:
    tables = match(folder, *names)
    return [[line.text for line in tables.find_lines(folder / name)] for name in names]


def test_parts_that_table_and_path_both_have_must_be_equal(tmp_path: Path) -> None:
    (tmp_path / "a.list").write_text("output/cut/a.wav|anna|EN|First.\nother/b.wav|anna|EN|Second.\nc|anna|EN|Third.\n")
    assert find_texts(tmp_path, "cut/a.flac", "cut/b.wav", "cut/c.wav") == [["First."], [], ["Third."]]
    assert find_texts(tmp_path, "a.wav", "x/cut/a.wav") == [["First."], []]
    assert find_texts(tmp_path, "a.wav", "cut/a.wav") == [[], ["First."]], "more folders that both have"


def test_metadata_comes_first_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for name, content in (("b.csv", "file_name,text\na.wav,B."), ("a.csv", "x,y\n1,2"), ("metadata.csv", "a|A."), (".c.list", "broken")):
        (tmp_path / name).write_text(content)
    assert [path.name for path in list_tables(tmp_path)] == ["metadata.csv", "a.csv", "b.csv"]
    assert read_tables(tmp_path).notes == [f"{tmp_path / 'a.csv'} is not read: its first line names no columns like file_name and text"]
    assert find_texts(tmp_path, "a.wav") == [["A.", "B."]]
    (tmp_path / "b.csv").write_text("file_name,text\na.wav,B.\n./a.wav,C.")
    with pytest.raises(UserError, match=r"b.csv:3: './a.wav' is also in line 2 with another text; remove one of the lines"):
        read_tables(tmp_path)


def test_the_encoding_of_a_table_is_reported(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_bytes("a|Ein café.".encode("latin-1"))
    assert "metadata.csv: not UTF-8, read as Latin-1" in read_tables(tmp_path).notes[0]


def test_two_lines_of_a_table_for_one_recording(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file_name,text\na.wav,One.\nsub/a.wav,Two.\n")
    assert find_texts(tmp_path, "a.wav", "sub/a.wav") == [["One."], ["Two."]]
    (tmp_path / "t.csv").write_text("file_name,text\nx/a.wav,One.\nsub/a.wav,Two.\n")
    with pytest.raises(UserError, match=r"t.csv:3: names .*/a.wav, as line 2 does with another text"):
        match(tmp_path, "a.wav")
    (tmp_path / "t.csv").write_text("file_name,text\nTALK.wav,One.\nTalk.wav,Two.\n")
    with pytest.raises(UserError, match=r"t.csv:3: names .*/talk.wav, as line 2 does with another text"):
        match(tmp_path, "talk.wav")
    assert find_texts(tmp_path, "Talk.wav") == [["Two."]]
    assert [line.line for _, line in match(tmp_path, "Talk.wav").list_unused()] == [2]


def test_rows_that_repeat_another_are_counted(tmp_path: Path) -> None:
    for name, content in (("metadata.csv", "a|One.\nb|Two.\na|One.\n"), ("t.csv", "file_name,text\na.wav,One.\n./a.wav,One.\n")):
        (tmp_path / name).write_text(content)
    tables = match(tmp_path, "a.wav", "b.wav")
    assert tables.notes == [
        f"{tmp_path / 'metadata.csv'}: repeated rows, dropped: 1 (line 3 repeats 1)",
        f"{tmp_path / 't.csv'}: repeated rows, dropped: 1 (line 3 repeats 2)",
    ]
    assert [(line.path.name, line.line) for line in tables.find_lines(tmp_path / "a.wav")] == [("metadata.csv", 1), ("t.csv", 2)]
    (tmp_path / "metadata.csv").write_text("b|Two.\nb.wav|Two.\n")
    assert match(tmp_path, "a.wav", "b.wav").notes[1:] == [
        f"{tmp_path / 'metadata.csv'}: repeated rows, dropped: 1 (line 2 names b.wav as line 1 does)"
    ]
    (tmp_path / "t.csv").write_text("file_name,text,speaker\na.wav,One.,anna\na.wav,One.,bo\n")
    with pytest.raises(UserError, match=r"t.csv:3: 'a.wav' is also in line 2 with another speaker"):
        read_tables(tmp_path)


def test_a_zero_byte_is_named(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_bytes("a|One.\nb|Two.\n".encode("utf-16-le"))
    with pytest.raises(UserError, match=r"metadata.csv:1: a zero byte, which no text has; save it as UTF-8 text"):
        read_tables(tmp_path)
    (tmp_path / "metadata.csv").write_text("a|One.\nb|T\0wo.")
    with pytest.raises(UserError, match=r"metadata.csv:2: a zero byte"):
        read_tables(tmp_path)


def test_rules_are_counted_if_a_name_is_not_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("a|A.\nb.wav|B.\nC|C.\nd.flac|D.\nE.mp3|E.\n")
    names = ("a.wav", "b.wav", "c.wav", "d.wav", "e.wav")
    tables = match(tmp_path, *names)
    assert tables.describe_rules({tmp_path / name for name in names}) == [
        f"{tmp_path / 'metadata.csv'}: 5 recordings found: 1 as written; 1 by name without ending; 1 regardless of case; "
        "1 regardless of case, with another ending; 1 with another ending"
    ]
    assert tables.describe_rules({tmp_path / "a.wav", tmp_path / "b.wav"}) == []
