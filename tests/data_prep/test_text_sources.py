"""Every kind of file gives its rows with their places, and what is broken is told where it stands."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from data_prep import text_sources
from data_prep.text_sources import Found
from finetune.errors import UserError
from tests.data_prep import make_saved_by_datasets as saved

ROWS: list[dict[str, Any]] = [{"prompt": "a\nb", "completion": "ünï"}, {"prompt": "c", "completion": 'say "d", e'}]


def read(*places: Path) -> list[Found]:
    return [found for source in text_sources.find(list(places)) for found in text_sources.rows(source)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the kind of file that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=1)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["jsonl", "ndjson", "json", "csv", "parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    found = read(write(tmp_path / f"chats.{kind}", ROWS))
    assert [each.row for each in found] == ROWS
    assert [each.place for each in found] == [f"chats.{kind}:1", f"chats.{kind}:2"]


def test_what_datasets_has_saved_is_read_split_by_split_and_without_arrows_nulls() -> None:
    assert [each.row for each in read(saved.HERE / "one")] == saved.ONE
    found = read(saved.HERE / "splits")
    assert [each.row for each in found] == [*saved.SPLITS["train"], *saved.SPLITS["test"]]
    assert [each.place for each in found] == ["splits/train:1", "splits/train:2", "splits/test:1", "splits/test:2"]


def test_what_datasets_saves_today_is_read(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="`make test-next` has it; elsewhere the folders that it saved are read")
    saved.write(tmp_path)
    assert [each.row for each in read(tmp_path / "one")] == saved.ONE
    assert [each.row for each in read(tmp_path / "splits")] == [*saved.SPLITS["train"], *saved.SPLITS["test"]]


def test_folders_are_read_by_name_in_the_order_given_and_hidden_files_are_not(tmp_path: Path) -> None:
    write(tmp_path / "more" / "b.jsonl", ROWS[:1])
    write(tmp_path / "more" / "a" / "z.csv", ROWS[1:])
    write(tmp_path / "more" / ".hidden.jsonl", ROWS)
    (tmp_path / "more" / "notes.txt").write_text("no rows")
    single = write(tmp_path / "first.json", ROWS[:1])
    assert [each.place for each in read(single, tmp_path / "more")] == ["first.json:1", "more/a/z.csv:1", "more/b.jsonl:1"]


def test_a_json_object_may_hold_the_one_array(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"version": 2, "data": ROWS}))
    assert [each.row for each in read(tmp_path / "a.json")] == ROWS


def test_broken_lines_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n\nnot json\n[1]\n\xff\xfe\n{"a": 2}')
    found = read(tmp_path / "a.jsonl")
    assert [each.row for each in found] == [{"a": 1}, None, None, None, {"a": 2}]
    assert [each.place for each in found] == [f"a.jsonl:{line}" for line in (1, 3, 4, 5, 6)]
    assert found[1].problem.startswith("not JSON (") and found[2].problem == "not an object in braces but list"
    (tmp_path / "b.csv").write_text("a,b\n1,2\n3\n4,5,6\n")
    assert [each.problem for each in read(tmp_path / "b.csv")] == ["", *["it has another number of columns than the header"] * 2]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json", b'{"a": 1}', "must hold an array of rows"),
        ("a.json", b"{", "is not JSON"),
        ("a.parquet", b"PAR1 or not", "is not a Parquet file"),
        ("a.csv", b"a,b\n\xff\xfe,1\n", "is not a CSV file in UTF-8"),
        ("a.txt", b"hello", "holds nothing to read; known are .jsonl"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=told) as caught:
        read(tmp_path / name)
    assert name in str(caught.value)
    with pytest.raises(UserError, match="does not exist"):
        read(tmp_path / "absent.jsonl")


def test_a_missing_package_is_named_with_the_command_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for place in (path, saved.HERE / "one"):
        with pytest.raises(UserError, match=r"needs pyarrow: pip install 'overtone\[text\]'"):
            read(place)
