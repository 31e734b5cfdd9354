"""Parquet and Arrow tables of other programs are read, and broken ones are refused with the reason."""

from __future__ import annotations

import datetime
import decimal
import json
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from overtone.finetune.errors import UserError
from tests.data_prep import make_saved_by_datasets as saved
from tests.data_prep.chats.test_chat_file_readers import ROWS, read, write


def test_saved_datasets_are_read_split_by_split_without_null_columns() -> None:
    assert [each.row for each in read(saved.HERE / "one")] == saved.ONE
    found = read(saved.HERE / "splits")
    assert [each.row for each in found] == [*saved.SPLITS["train"], *saved.SPLITS["test"]]
    assert [each.place for each in found] == ["splits/train:1", "splits/train:2", "splits/test:1", "splits/test:2"]


def test_folders_saved_by_the_installed_datasets_are_read(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="`make test-chat` has it; elsewhere the folders that it saved are read")
    saved.write(tmp_path)
    assert [each.row for each in read(tmp_path / "one")] == saved.ONE
    assert [each.row for each in read(tmp_path / "splits")] == [*saved.SPLITS["train"], *saved.SPLITS["test"]]


COLUMNS: dict[str, Any] = {
    "nanoseconds": pyarrow.array([1_700_000_000_123_456_789], pyarrow.timestamp("ns")),
    "far": pyarrow.array([2**31 - 1], pyarrow.int32()).cast(pyarrow.date32()),
    "price": pyarrow.array([decimal.Decimal("1.5")]),
    "picture": pyarrow.array([b"\xff\xd8"]),
    "day": pyarrow.array([datetime.date(2024, 2, 29)]),
}


def test_columns_that_no_format_reads_may_have_any_type(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"prompt": ["a"], "completion": ["b"], "absent": [None], **COLUMNS}), tmp_path / "a.parquet")
    (found,) = read(tmp_path / "a.parquet")
    assert found.row == {"prompt": "a", "completion": "b", **dict.fromkeys(COLUMNS, True)}, "what is not read is only known to be there"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pyarrow.table({"prompt": COLUMNS["far"]}), "a.parquet is broken .days=2147483647"),
        (pyarrow.table([["a"], ["b"]], names=["prompt", "prompt"]), r"duplicate column names \(prompt, prompt\)"),
        (pyarrow.table({"prompt": pyarrow.array([b"\xff"]).view(pyarrow.string())}), "Invalid UTF8"),
    ],
)
def test_a_table_with_unreadable_columns_is_refused_with_the_reason(tmp_path: Path, content: pyarrow.Table, message: str) -> None:
    parquet.write_table(content, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.parquet")


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_bytes(b"PAR1 or not")
    whole = bytearray(write(tmp_path / "a.parquet", ROWS).read_bytes())
    whole[4:40] = bytes(36)
    (tmp_path / "a.parquet").write_bytes(whole)
    for name in ("text", "a"):
        with pytest.raises(UserError, match=rf"{name}\.parquet (is broken|cannot be read) \("):
            read(tmp_path / f"{name}.parquet")


def test_offsets_outside_the_file_are_refused(tmp_path: Path) -> None:
    """Nobody has checked them when Arrow maps a file into memory, and what lies behind it would be read as text."""
    shutil.copytree(saved.HERE / "one", tmp_path / "one")
    offsets = pyarrow.py_buffer(struct.pack("<3i", 0, 2**20, 2))
    column = pyarrow.StringArray.from_buffers(2, offsets, pyarrow.py_buffer(b"ab"))
    with pyarrow.OSFile(str(tmp_path / "one" / "data-00000-of-00001.arrow"), "wb") as file:
        batch = pyarrow.record_batch({"prompt": column, "completion": ["c", "d"]})
        with pyarrow.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch)
    with pytest.raises(UserError, match=r"one is broken \(.*[Oo]ffset"):
        read(tmp_path / "one")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("one/state.json", "{", "one/state.json cannot be read"),
        ("one/state.json", "[]", "must hold an object in braces"),
        ("one/state.json", "{}", "_data_files must name files beside it, found None"),
        ("one/state.json", '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}, 7]}', "_data_files must name files"),
        ("one/state.json", '{"_data_files": [{"filename": "../splits/test/data-00000-of-00001.arrow"}]}', "_data_files must name files"),
        ("one/state.json", '{"_data_files": [{"filename": "gone.arrow"}]}', "cannot be read .*No such file|gone"),
        ("one/state.json", '{"_indices_data_files": [{"filename": "i.arrow"}]}', "selects rows by _indices_data_files"),
        ("one/data-00000-of-00001.arrow", "nonsense", "one (is broken|cannot be read)"),
        ("splits/dataset_dict.json", '{"splits": "train"}', "splits must be a list of names"),
        ("splits/dataset_dict.json", '{"splits": ["../one"]}', "splits must be a list of names"),
        ("splits/dataset_dict.json", '{"splits": ["dev"]}', "dev/state.json cannot be read .No such file"),
        ("splits/dataset_dict.json", "\0", "dataset_dict.json cannot be read"),
    ],
)
def test_a_changed_folder_of_datasets_is_refused_with_the_reason(tmp_path: Path, name: str, content: str, message: str) -> None:
    shutil.copytree(saved.HERE, tmp_path, dirs_exist_ok=True)
    assert (tmp_path / name).is_file()
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / name.partition("/")[0])
    assert "\n" not in str(caught.value)


def test_a_deeply_nested_schema_is_refused(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    parquet.write_table(pyarrow.Table.from_pylist([{"messages": deep}]), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet cannot be read \(.*nested"):
        read(tmp_path / "a.parquet")


def test_a_missing_pyarrow_is_named_with_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for place in (path, saved.HERE / "one"):
        with pytest.raises(UserError, match=r"needs pyarrow: pip install 'overtone\[text\]'"):
            read(place)


def test_a_foreign_state_json_is_read_as_conversations(tmp_path: Path) -> None:
    (tmp_path / "chats" / "state.json").parent.mkdir()
    (tmp_path / "chats" / "state.json").write_text(json.dumps(ROWS))
    assert [each.row for each in read(tmp_path / "chats")] == ROWS


@pytest.mark.parametrize("name", ["label", "kto_tag"])
@pytest.mark.parametrize("labels", [[True, False], [0, 1], [0.0, 1.0], ["false", "true"], [[0], [1]]], ids=str)
def test_labels_are_read_as_they_are(tmp_path: Path, name: str, labels: list[Any]) -> None:
    """A label that was only known to be there would be taken for a true one."""
    parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "completion": ["c", "d"], name: labels}), tmp_path / "kto.parquet")
    found = [each.row[name] for each in read(tmp_path / "kto.parquet") if each.row]
    assert found == labels and [type(each) for each in found] == [type(each) for each in labels]
