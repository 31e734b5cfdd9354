"""Text in other encodings than UTF-8 is read or refused, and never read wrongly without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.data_prep.recordings.text_encoding import read_text
from overtone.finetune.errors import UserError

FRENCH = "Le café où l'été s'achève.\r\nDéjà vu !"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_is_read_without_a_note(encoding: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.txt").write_bytes(FRENCH.encode(encoding))
    assert read_text(path) == ("Le café où l'été s'achève.\nDéjà vu !", "")


def test_western_european_bytes_are_read_and_reported(tmp_path: Path) -> None:
    (path := tmp_path / "a.txt").write_bytes(FRENCH.encode("latin-1"))
    assert read_text(path).text == FRENCH.replace("\r\n", "\n")
    assert read_text(path).note == f"{path}: not UTF-8, read as Latin-1; check its accents, for example 'café'"
    path.write_bytes("“Straße” – 5 €".encode("cp1252"))
    assert read_text(path) == ("“Straße” – 5 €", f"{path}: not UTF-8, read as Windows-1252; check its accents, for example 'Straße'")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("Привет, как дела?", "cp1251"), ("你好，世界一号。", "gbk"), ("こんにちは、世界。", "shift-jis"), ("café", "utf-16-le")],
)
def test_other_encodings_are_refused(text: str, encoding: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.txt").write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match="a.txt is not UTF-8 .*; save it as UTF-8"):
        read_text(path)
    path.write_bytes(b"\xff\xfea")
    with pytest.raises(UserError, match="a.txt begins like UTF-16"):
        read_text(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_text(tmp_path)


def test_line_breaks_that_were_converted_twice_are_one(tmp_path: Path) -> None:
    (path := tmp_path / "a.srt").write_bytes(b"1\r\r\n2\r\r\n\r\r\n3")
    assert read_text(path).text == "1\n2\n\n3"


def test_a_zero_byte_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "a.txt").write_bytes(b"PK\nx\0\0")
    with pytest.raises(UserError, match="a.txt:2: a zero byte, which no text has; save it as UTF-8 text"):
        read_text(path)
