"""Rows are found by number, and what is not trained on is known with its reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from finetune import files, rows
from finetune.errors import UserError
from finetune.rows import Measured, Rows
from tests.finetune import tiny


def measure(row: dict[str, Any]) -> Measured:
    if not isinstance(row.get("text"), str):
        raise UserError("no text in it")
    return Measured(len(row["text"]))


def opened(path: Path, cache: Path, key: str = "key") -> Rows:
    rows.build_index(path, cache, key, measure)
    return rows.open_rows(path, cache)


def test_rows_are_read_by_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"text": "one"}\n\n   \n{"text": "Ærø"}\r\n{"text": "last, without a line end"}'.encode())
    found = opened(path, tmp_path / "cache")
    assert [found.read(row)["text"] for row in range(len(found))] == ["one", "Ærø", "last, without a line end"]
    assert found.lengths.tolist() == [3, 3, 24]
    assert [found.where(row) for row in range(3)] == [f"{path}:1", f"{path}:4", f"{path}:5"]
    assert found.digest == files.digest(path)


def test_bad_rows_are_listed_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "fine"}\n{"text": 3}\n\nnot json\n[1]\n"text"\n')
    with pytest.raises(UserError) as caught:
        opened(path, tmp_path / "cache")
    first, *others = str(caught.value).splitlines()
    told = ("2: no text in it", "4: not a line of JSON (", "5: expected an object in braces, found list", "6: expected an object in braces")
    assert first == "4 bad rows:" and len(others) == 4
    assert all(line.startswith(f"  {path}:{words}") for line, words in zip(others, told, strict=True))
    assert not (tmp_path / "cache").exists()


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n" * 25)
    with pytest.raises(UserError, match=r"(?s)^25 bad rows:.*:10: no text in it\n  … and 15 more$"):
        opened(path, tmp_path / "cache")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_rows_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"rows\.jsonl: no rows; there is nothing to train on"):
        opened(tmp_path / "rows.jsonl", tmp_path / "cache")


def test_a_file_that_is_missing_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows\.jsonl: no such file; .*data_prep"):
        opened(tmp_path / "rows.jsonl", tmp_path / "cache")


def test_an_index_is_used_again_until_file_or_key_change(tmp_path: Path) -> None:
    path, cache = tiny.write_rows(tmp_path / "rows.jsonl", ["abc", "defg"]), tmp_path / "cache"
    measured: list[str] = []

    def build(key: str) -> list[int]:
        measured.clear()
        rows.build_index(path, cache, key, lambda row: measured.append(row["text"]) or measure(row))  # type: ignore[func-returns-value]  # append, then measure
        return rows.open_rows(path, cache).lengths.tolist()

    assert build("a") == [3, 4] and len(measured) == 2
    assert build("a") == [3, 4] and measured == []
    assert build("b") == [3, 4] and len(measured) == 2
    before = path.stat()
    tiny.write_rows(path, ["abcd", "efg"])
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert build("b") == [4, 3] and len(measured) == 2, "the same size, another time"
    tiny.write_rows(path, ["abcd", "efg", "hij"])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert build("b") == [4, 3, 3], "the same time, another size"


def test_two_files_of_one_name_do_not_share_an_index(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = opened(tiny.write_rows(tmp_path / "a" / "train.jsonl", ["abc"]), cache)
    second = opened(tiny.write_rows(tmp_path / "b" / "train.jsonl", ["defg"]), cache)
    assert first.read(0) == {"text": "abc"} and second.read(0) == {"text": "defg"}
    assert rows.open_rows(tmp_path / "a" / "train.jsonl", cache).lengths.tolist() == [3]
