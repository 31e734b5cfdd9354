"""Rows are visited with their lines, and all problems of a file are one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.data.jsonl_rows import visit_rows
from overtone.finetune.errors import UserError


def write(folder: Path, *lines: str) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def refuse(_: int, row: dict[str, Any]) -> None:
    if row["a"] < 0:
        raise UserError(f"a is {row['a']}")


def test_rows_come_with_the_numbers_of_their_lines(tmp_path: Path) -> None:
    found: list[tuple[int, dict[str, Any]]] = []
    visit_rows(write(tmp_path, '{"a": 1}', " ", '{"a": 2}'), lambda line, row: found.append((line, row)), "give others")
    assert found == [(1, {"a": 1}), (3, {"a": 2})]


def test_all_problems_are_one_error_with_the_lines(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        visit_rows(write(tmp_path, '{"a": -1}', '{"a": 2}', "[]", '{"a": 3}'), refuse, "give others")
    message = str(error.value)
    assert "2 invalid rows" in message and "rows.jsonl:1: a is -1" in message and "rows.jsonl:3: " in message and ":2: " not in message


def test_a_file_without_rows_is_an_error_with_advice(tmp_path: Path) -> None:
    empty, gone = write(tmp_path, ""), tmp_path / "gone.jsonl"
    with pytest.raises(UserError, match=rf"^--rows {empty} has no rows; give others$"):
        visit_rows(empty, refuse, "give others", "--rows")
    with pytest.raises(UserError, match=rf"^{gone}: No such file or directory; give others$"):
        visit_rows(gone, refuse, "give others")
