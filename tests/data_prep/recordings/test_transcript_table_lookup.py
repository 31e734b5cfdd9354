"""Which line of which table belongs to a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.recordings.transcript_table_lookup import list_tables, read_tables, split_name
from finetune.errors import UserError


def test_parts_that_table_and_path_both_have_must_be_equal(tmp_path: Path) -> None:
    (tmp_path / "a.list").write_text("output/cut/a.wav|anna|EN|First.\nother/b.wav|anna|EN|Second.\nc|anna|EN|Third.\n")
    tables = read_tables(tmp_path)
    texts = {name: [line.text for line in tables.find_lines(tmp_path / name)] for name in ("cut/a.flac", "cut/b.wav", "cut/c.wav", "a.wav")}
    assert texts == {"cut/a.flac": ["First."], "cut/b.wav": [], "cut/c.wav": ["Third."], "a.wav": ["First."]}
    assert split_name("./clips/a.b.wav") == ("clips", "a.b") and split_name("a.b") == ("a.b",) and split_name("..") == ("..",)


def test_metadata_comes_first_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for name, content in (("b.csv", "file_name,text\na.wav,B."), ("a.csv", "x,y\n1,2"), ("metadata.csv", "a|A."), (".c.list", "broken")):
        (tmp_path / name).write_text(content)
    assert [path.name for path in list_tables(tmp_path)] == ["metadata.csv", "a.csv", "b.csv"]
    assert read_tables(tmp_path).notes == [f"{tmp_path / 'a.csv'} is not read: its first line names no columns like file_name and text"]
    assert [line.text for line in read_tables(tmp_path).find_lines(tmp_path / "a.wav")] == ["A.", "B."]
    (tmp_path / "b.csv").write_text("file_name,text\na.wav,B.\n./a.wav,C.")
    with pytest.raises(UserError, match=r"b.csv:3: './a.wav' is also in line 2; remove one of the lines"):
        read_tables(tmp_path)


def test_the_encoding_of_a_table_is_reported(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_bytes("a|Ein café.".encode("latin-1"))
    assert "metadata.csv: not UTF-8, read as Latin-1" in read_tables(tmp_path).notes[0]


def test_two_lines_of_a_table_for_one_recording(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file_name,text\na.wav,One.\nsub/a.wav,Two.\n")
    tables = read_tables(tmp_path)
    assert [[line.text for line in tables.find_lines(tmp_path / name)] for name in ("a.wav", "sub/a.wav")] == [["One."], ["Two."]]
    (tmp_path / "t.csv").write_text("file_name,text\nx/a.wav,One.\nsub/a.wav,Two.\n")
    with pytest.raises(UserError, match=r"t.csv:3: names .*/a.wav, as line 2 does with another text"):
        read_tables(tmp_path).find_lines(tmp_path / "a.wav")
