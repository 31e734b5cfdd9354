"""Every file type gives its rows with their places, and broken content is reported with its place."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from overtone.data_prep.chats import chat_file_readers, chat_file_search
from overtone.data_prep.chats.chat_file_search import KINDS, PARQUET, FoundRow
from overtone.finetune.errors import UserError

ROWS: list[dict[str, Any]] = [{"prompt": "a\nb", "completion": "ünï"}, {"prompt": "c", "completion": 'say "d", e'}]
PACKED = [f"{suffix}.gz" for suffix, kind in KINDS.items() if kind != PARQUET]


def read(*places: Path) -> list[FoundRow]:
    return [found for source in chat_file_search.find_sources(list(places)).sources for found in chat_file_readers.read_rows(source)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the kind of file that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        plain = write(path.with_name(f".plain-{path.stem}"), rows)
        path.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        plain.unlink()
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
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


@pytest.mark.parametrize("kind", [*KINDS, *PACKED])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    assert len(PACKED) == len(KINDS) - 1
    found = read(write(tmp_path / f"chats{kind}", ROWS))
    assert [each.row for each in found] == ROWS
    first, second = (2, 4) if kind[1:4] in ("csv", "tsv") else (1, 2)  # a header stands above, and the first row takes two lines
    assert [each.place for each in found] == [f"chats{kind}:{first}", f"chats{kind}:{second}"]


TURNS = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        (json.dumps({"version": 2, "data": ROWS}), ROWS),
        (json.dumps({"conversations": [{"conversations": TURNS}]}), [{"conversations": TURNS}]),
        (json.dumps({"conversations": TURNS}, indent=1), [{"conversations": TURNS}]),
        (json.dumps(ROWS[0]), ROWS[:1]),
        ("\n".join(map(json.dumps, ROWS)), ROWS),
    ],
)
def test_json_rows_may_be_a_list_inside_an_object_a_single_object_or_one_per_line(tmp_path: Path, document: str, rows: list[Any]) -> None:
    (tmp_path / "a.json").write_text(document)
    assert [each.row for each in read(tmp_path / "a.json")] == rows


def test_broken_lines_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n\nnot json\n[1]\n\xff\xfe\n{"a": 2, "b": null}\r\n{"a": 3, "a": 4}')
    found = read(tmp_path / "a.jsonl")
    assert [each.row for each in found] == [{"a": 1}, None, None, None, {"a": 2}, None]
    assert [each.place for each in found] == [f"a.jsonl:{line}" for line in (1, 3, 4, 5, 6, 7)]
    assert found[1].problem.startswith("not JSON that can be kept (") and found[2].problem == "not an object in braces but list"
    assert "the key 'a' stands twice" in found[5].problem


def test_csv_files_of_other_programs_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("\ufeffprompt;completion;id\r\n\r\na,b;ü;1\r\n".encode())
    assert [(each.place, each.row) for each in read(tmp_path / "a.csv")] == [("a.csv:3", {"prompt": "a,b", "completion": "ü", "id": "1"})]
    (tmp_path / "a.csv").write_bytes('\ufeffsep=;\r\nprompt;completion\r\na,b;"x\r\ny"\r\n'.encode())
    assert [(each.place, each.row) for each in read(tmp_path / "a.csv")] == [("a.csv:3", {"prompt": "a,b", "completion": "x\r\ny"})]
    (tmp_path / "b.csv").write_text("a,b\n1,2\n3\n4,5,6\n")
    assert [each.problem for each in read(tmp_path / "b.csv")] == [
        "",
        *[f"it has {found} columns, and the header has 2" for found in (1, 3)],
    ]


def test_a_quotation_over_two_rows_merges_no_rows(tmp_path: Path) -> None:
    """With tabs each row keeps its text; with commas the record is rejected, unless its lines are prose."""
    rows = ["prompt,completion", "q1,a1", 'q2,"He left.', 'q3,Yes."', 'q4,"One,\ntwo, three."', 'q5,"One\ntwo, three."']
    (tmp_path / "a.csv").write_text("\n".join(rows))
    found = read(tmp_path / "a.csv")
    assert [(each.place, each.row["completion"] if each.row else None) for each in found] == [
        ("a.csv:2", "a1"),
        ("a.csv:3", None),
        ("a.csv:5", "One,\ntwo, three."),
        ("a.csv:7", "One\ntwo, three."),
    ]
    assert found[1].problem == "a quotation begins here and includes lines that read as rows of their own: 'q3,Yes.\"'"
    (tmp_path / "a.tsv").write_text("\n".join(rows[:4]).replace(",", "\t"))
    assert [(each.row or {})["completion"] for each in read(tmp_path / "a.tsv")] == ["a1", '"He left.', 'Yes."']


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"a": 1}', "must hold an array of rows"),
        ("a.json", b"{", r"is not JSON that can be kept \(Expecting"),
        ("a.json", b"", "is not JSON that can be kept .Expecting value"),
        ("a.json", b"[] []", "is not JSON that can be kept .Extra data"),
        ("a.json", b'{"a": [], "b": []}', "must hold an array of rows, an object with one such array, or one object a line"),
        ("a.json", b'[{"a": "\xff"}]', "is not JSON that can be kept .*codec can't decode"),
        ("a.json", b"[" * 10_000, "nested more than 100 deep"),
        ("a.json", b"[" + b"1" * 5000 + b"]", "is not JSON that can be kept .*digits"),
        ("a.jsonl", '{"a": 1}'.encode("utf-16"), "is in UTF-16; save it in UTF-8"),
        ("a.csv", b"a,b\n\xff\xfe,1\n", "is not a table of text in UTF-8"),
        ("a.csv", b'a,b\n1,"2\n', r"a.csv:2 is not a row of a table .its quotation has no end.; correct its quotation marks"),
        ("a.csv", b"a,b,a\n1,2,3\n", r"its first line names a column twice \(a, b, a\)"),
        ("a.jsonl.gz", b'{"a": 1}', r"cannot be read \(Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}' * 99, mtime=0)[:-9], r"cannot be read \(Compressed file ended"),
        ("a.csv.gz", gzip.compress(b"a,b\n", mtime=0)[:10] + b"\xff" * 20, r"cannot be read \(Error -3"),
    ],
)
def test_a_file_of_another_type_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / name)
    assert name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz", "a.parquet"])
def test_a_file_that_vanished_before_it_is_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match=rf"{name} cannot be read \(.*[Nn]o such file"):
        read(tmp_path / name)
