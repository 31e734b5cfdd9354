"""Folders, rows and tables of labelled images, with what cannot be used."""

from __future__ import annotations

import json
import unicodedata
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from overtone.data_prep.images.image_sources import FoundImage, find_images
from overtone.finetune.errors import UserError


def png(red: int = 9) -> bytes:
    written = BytesIO()
    Image.new("RGB", (6, 6), (red, 0, 0)).save(written, "PNG")
    return written.getvalue()


def put(path: Path, content: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content or png())
    return path


def found_in(source: Path, splits: list[str] | None = None) -> list[FoundImage]:
    return list(find_images(str(source), [], splits or []))


def summarise(found: list[FoundImage]) -> list[tuple[str, str | None, str, str]]:
    return [(one.place, one.label, one.split, one.problem) for one in found]


def test_the_folder_of_an_image_is_its_label(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/2.JPG", "dog/old/3.png", "loose.png", "dog/notes.txt", ".cache/x.png"):
        put(tmp_path / name)
    assert summarise(found_in(tmp_path)) == [
        ("cat/1.png", "cat", "", ""),
        ("cat/2.JPG", "cat", "", ""),
        ("dog/notes.txt", None, "", "not an image file (.txt)"),
        ("dog/old/3.png", "old", "", ""),
        ("loose.png", None, "", "no label: not in a subfolder"),
    ]


def test_folders_of_splits_are_no_labels(tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "validation/cat/2.png", "test/dog/3.png"):
        put(tmp_path / name)
    assert [(one.label, one.split) for one in found_in(tmp_path)] == [("dog", "test"), ("cat", "train"), ("cat", "val")]
    flat = tmp_path / "flat"
    for name in ("test/1.png", "train/2.png"):  # labels that are named like splits
        put(flat / name)
    assert [(one.label, one.split) for one in found_in(flat)] == [("test", ""), ("train", "")]


def test_rows_have_paths_labels_and_splits(tmp_path: Path) -> None:
    put(tmp_path / "a b.png")
    rows: list[Any] = [
        {"image": "a b.png", "label": "cat"},
        {"file_name": "a b.png", "label": 3, "split": "validation"},
        {"image": "a b.png"},
        {"label": "cat"},
        {"image": "../x.png", "label": "cat"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n{broken\n")
    found = found_in(tmp_path / "rows.jsonl")
    assert [(one.label, one.split) for one in found[:3]] == [("cat", ""), ("3", "val"), (None, "")]
    assert [one.place for one in found] == [f"rows.jsonl:{line}" for line in (1, 2, 3, 4, 5, 7)]
    assert "no path of an image" in found[3].problem and "leads outside" in found[4].problem and found[5].problem


def test_a_row_finds_its_image_in_another_form_of_the_name(tmp_path: Path) -> None:
    put(tmp_path / "cats" / unicodedata.normalize("NFD", "fünf.png"))
    rows = [{"image": name, "label": "cat"} for name in ("cats/fünf.png", "Cats\\FÜNF.png")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = found_in(tmp_path / "rows.jsonl")
    assert [one.changes for one in found] == [("found in another form of the name",)] * 2 and not any(one.problem for one in found)
    assert all(isinstance(one.content, Path) and one.content.is_file() for one in found)


def make_table() -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    images = [{"bytes": png(red), "path": None} for red in (1, 2, 3)]
    schema = pyarrow.schema(
        [("image", pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])), ("label", pyarrow.int64())], metadata
    )
    return pyarrow.Table.from_pydict({"image": [*images, None], "label": [1, 0, -1, 1]}, schema)


def check_table(found: list[FoundImage], split: str) -> None:
    assert [one.label for one in found] == ["dog", "cat", None, "dog"] and {one.split for one in found} == {split}
    assert [one.content for one in found[:3]] == [png(1), png(2), png(3)] and found[3].problem == "no image in its column"


def test_tables_have_bytes_and_names_of_classes(tmp_path: Path) -> None:
    table = make_table()
    from pyarrow import parquet

    parquet.write_table(table, tmp_path / "train-00000-of-00001.parquet")
    check_table(found_in(tmp_path / "train-00000-of-00001.parquet"), "")
    check_table(found_in(tmp_path), "train")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UserError, match="broken.parquet is broken"):
        found_in(tmp_path / "broken.parquet")


def test_saved_datasets_are_read(tmp_path: Path) -> None:
    table = make_table()
    import pyarrow

    for split in ("train", "test"):
        folder = tmp_path / split
        folder.mkdir()
        with pyarrow.OSFile(str(folder / "data-0.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
        (folder / "dataset_info.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    check_table(found_in(tmp_path / "train"), "")
    found = found_in(tmp_path)
    check_table(found[:4], "test")
    check_table(found[4:], "train")


def test_a_table_without_the_columns_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"picture": [b"x"], "label": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="no column image or img or file_name; it has picture, label"):
        found_in(tmp_path / "a.parquet")


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "gone", put(tmp_path / "a.zip")):
        with pytest.raises(UserError, match="give a folder of images"):
            found_in(place)
