"""What is not a file of training rows is recognized by its beginning, and the message has the command that converts it."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from overtone.finetune.data.raw_data_files import explain_raw_data

KEYS = (frozenset({"messages"}), frozenset({"prompt", "completion"}))
ROW = json.dumps({"messages": []}).encode()
SHAREGPT = json.dumps({"id": 1, "conversations": []}).encode()
RAW = {
    "a.csv": (b"prompt,completion\n1,2\n", "is a table"),
    "a.tsv": (b"prompt\tcompletion\n", "is a table"),
    "a.parquet": (b"PAR1\0\0PAR1", "is a Parquet table"),
    "a.json": (b"[" + ROW + b"]", "is one JSON array"),
    "b.json": (b'{\n  "data": [\n', "is one JSON document over several lines"),
    "c.json": (b'{"data": [\n {"a": 1}]}', "is one JSON document over several lines"),
    "a.jsonl.gz": (gzip.compress(ROW, mtime=0), "is a compressed file"),
    "a.jsonl": (SHAREGPT + b"\n", "is a file of rows of another form (keys: id, conversations; a training row has messages; or comp"),
    "one.jsonl": (SHAREGPT, "is a file of rows of another form"),
    "utf16.jsonl": (ROW.decode().encode("utf-16"), "is a text in UTF-16"),
    "chat.txt": (b"12/03/2024, 14:05 - Anna: hi\n", "is a plain text"),
    "a.bin": (b"abc\0def", "is not a text"),
    "a b.wav": (b"RIFF", "is a recording"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAW)
def test_other_files_are_recognized_by_their_beginning(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, what = RAW[name]
    (tmp_path / name).write_bytes(content)
    message = explain_raw_data("data.train", Path(name), "text", KEYS)
    assert message is not None and message.startswith(f"data.train: {name} {what}")
    quoted = f"'{name}'" if " " in name else name
    assert f"overtone text {quoted} --out " in message and "train.jsonl" in message


@pytest.mark.parametrize(
    "content",
    [ROW + b"\n", b"\xef\xbb\xbf\n\n" + ROW, b'{"prompt": "", "completion": "", "n": 1}\n', b"", b'{"broken', b'{"a": "' + b"x" * 99999],
)
def test_rows_and_what_their_reader_explains_better_are_accepted(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(content)
    assert explain_raw_data("data.train", tmp_path / "train.jsonl", "text", KEYS) is None


def test_a_folder_is_named_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("raw", "data"):
        (tmp_path / name).mkdir()
    assert explain_raw_data("data.train", Path("raw"), "voice", ()) == (
        "data.train: raw is a folder, and training reads a file of rows. Convert it, then give --data.train data/raw/train.jsonl:\n"
        "  overtone voice raw --out data/raw"
    )
    assert "--out data-dataset" in (explain_raw_data("data.train", Path("data"), "voice", ()) or ""), "the output is not inside the source"
    for name in ("train", "val"):
        (tmp_path / "data" / f"{name}.jsonl").write_text("{}")
        assert explain_raw_data(f"data.{name}", Path("data"), "voice", ()) == (
            f"data.{name}: data is a folder; give its file: --data.{name} data/{name}.jsonl"
        )
    assert "defines the keys of a row" in (explain_raw_data("data.train", Path("raw"), None, ()) or "")


def test_archives_are_unpacked_first_except_exported_chats(tmp_path: Path) -> None:
    for name, inside in (("chat.zip", "_chat.txt"), ("other.zip", "a.jsonl"), ("a.xlsx", "xl/x.xml")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(inside, "x")
    assert "overtone text" in (explain_raw_data("data.train", tmp_path / "chat.zip", "text", KEYS) or "")
    assert "Unpack it first" in (explain_raw_data("data.train", tmp_path / "other.zip", "text", KEYS) or "")
    assert "is a spreadsheet" in (message := explain_raw_data("data.train", tmp_path / "a.xlsx", "text", KEYS) or "")
    assert message.endswith("Save it as CSV first.")
