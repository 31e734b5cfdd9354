"""Finds labelled images: in folders, JSONL files, Parquet files, folders that `datasets` saved, and datasets on the hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.data_prep.chats.arrow_tables import list_data_files, read_streams
from overtone.data_prep.dataset_split_selection import choose_splits
from overtone.data_prep.hub_dataset_download import download_dataset_files
from overtone.data_prep.images.image_decoding import SUFFIXES
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files, strict_json
from overtone.finetune.storage.model_resolver import is_hub_name
from overtone.finetune.storage.referenced_files import find_file, is_renamed
from overtone.finetune.storage.strict_json import one_line

if TYPE_CHECKING:
    import pyarrow

OPTION = "SOURCE"
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""Name of a folder or split → its use."""
IMAGE_COLUMNS, LABEL_COLUMNS = ("image", "img", "file_name"), ("label", "labels", "class")
"""Names of columns and JSON keys, the first that a row has."""
ROWS_AT_ONCE = 64
NO_CLASS = -1
"""Value of a ClassLabel column in a row without a class."""


@dataclass(frozen=True)
class FoundImage:
    """An image of a source, not decoded yet."""

    place: str
    """Place for reports: a path in the source, or file:line."""
    content: Path | bytes
    label: str | None
    split: str = ""
    """train, val or test, if the source says so."""
    problem: str = ""
    """The reason why it cannot be read; then `content` is empty."""
    changes: tuple[str, ...] = ()
    """Differences between the file and its description in the source."""


def find_images(source: str, configs: Sequence[str], splits: Sequence[str]) -> Iterator[FoundImage]:
    """Yield the images of a source in a fixed order. `configs`, `splits`: of a dataset on the hub. Raises `UserError`."""
    path = Path(source)
    if path.is_dir():
        saved = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
        saved = saved or (path / "dataset_dict.json").is_file() or any(path.rglob("*.parquet"))
        yield from _find_in_dataset_folder(path) if saved else _find_in_folder(path)
    elif path.suffix.lower() == ".jsonl" and path.is_file():
        yield from read_rows(path)
    elif path.suffix.lower() == ".parquet" and path.is_file():
        yield from _read_table(path, "", path.name)
    elif path.exists() or not is_hub_name(source):
        raise UserError(f"{source}: give a folder of images, a .jsonl or .parquet file, or the name of a dataset on the hub (owner/name)")
    else:
        found = download_dataset_files(OPTION, source, ("*.parquet",), configs) or []
        if not found:
            raise UserError(f"{source}: the dataset has no Parquet files; download and unpack it, and give the folder")
        known = list(dict.fromkeys(file.split for file in found))
        wanted = splits and choose_splits(OPTION, source, known, splits)
        for file in found:
            if not wanted or file.split in wanted:
                yield from _read_table(file.path, "train" if wanted else SPLITS.get(file.split, file.split), file.name)


def _find_in_folder(folder: Path) -> Iterator[FoundImage]:
    """Find images whose label is the name of their folder. Folders named train, val and test at the top are splits, if all are such."""
    split = has_split_folders(folder)
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        parts = path.relative_to(folder).parts
        place, inner = "/".join(parts), parts[1:] if split and len(parts) > 1 else parts
        part = SPLITS.get(parts[0].lower(), "") if split else ""
        if path.suffix.lower() not in SUFFIXES:
            yield FoundImage(place, b"", None, part, f"not an image file ({path.suffix.lower() or 'no ending'})")
        elif len(inner) < 2:
            yield FoundImage(place, b"", None, part, "no label: not in a subfolder")
        else:
            yield FoundImage(place, path, inner[-2], part)


def has_split_folders(folder: Path) -> bool:
    """Return whether the folders in `folder` are splits that contain a folder for each label, and not labels that happen to be named so."""
    children = [child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")]
    deep = all(any(inner.is_dir() for inner in child.iterdir()) for child in children)
    return bool(children) and deep and all(child.name.lower() in SPLITS for child in children)


def read_rows(path: Path) -> Iterator[FoundImage]:
    """Yield the rows of a JSONL file with `image` and `label`; paths are relative to the file, and must stay in its folder."""
    for number, line in enumerate(input_files.read_lines(path), start=1):
        if line.strip():
            yield _read_row(f"{path.name}:{number}", line, path.parent)


def _read_row(place: str, line: bytes, folder: Path) -> FoundImage:
    try:
        row = strict_json.loads_object(line)
        name = next((row[key] for key in IMAGE_COLUMNS if isinstance(row.get(key), str)), None)
        if name is None:
            raise UserError("no path of an image (key image)")
        split = SPLITS.get(str(row.get("split")).lower(), "")
        label = next((row[key] for key in LABEL_COLUMNS if row.get(key) is not None), None)
        return _locate_image(place, folder, name, _name_label(label, ()), split)
    except UserError as error:
        return FoundImage(place, b"", None, problem=str(error))


def _locate_image(place: str, folder: Path, name: str, label: str | None, split: str) -> FoundImage:
    """Return the image that a row names by its path. Raises `UserError` for a path outside of the folder."""
    path = find_file(folder, name)
    return FoundImage(place, path, label, split, changes=("found in another form of the name",) if is_renamed(folder, name, path) else ())


def _name_label(value: object, names: Sequence[str]) -> str | None:
    """Return the label as text; None if there is none. `names`: of a ClassLabel column."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        if names:
            return names[value] if 0 <= value < len(names) else None
        return None if value == NO_CLASS else str(value)
    return value.strip() or None if isinstance(value, str) else None


def _find_in_dataset_folder(folder: Path) -> Iterator[FoundImage]:
    """Find the images in a folder of `Dataset.save_to_disk` or `DatasetDict.save_to_disk`, or in one with Parquet files."""
    if (folder / "dataset_dict.json").is_file():
        for child in sorted(child for child in folder.iterdir() if (child / "state.json").is_file()):
            yield from _read_batches(read_streams(list_data_files(child)), folder, SPLITS.get(child.name.lower(), child.name), child.name)
    elif (folder / "state.json").is_file():
        yield from _read_batches(read_streams(list_data_files(folder)), folder, "", folder.name)
    else:
        for path in sorted(folder.rglob("*.parquet")):
            split = next((SPLITS[word] for word in path.stem.lower().split("-")[:1] if word in SPLITS), "")
            yield from _read_table(path, split, path.relative_to(folder).as_posix())


def _read_table(path: Path, split: str, name: str) -> Iterator[FoundImage]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path} needs pyarrow: pip install 'overtone[text]'") from None
    try:
        with input_files.open_file(path) as source, parquet.ParquetFile(source) as file:
            yield from _read_batches(file.iter_batches(batch_size=ROWS_AT_ONCE), path.parent, split, name)
    except (OSError, ValueError) as error:  # pyarrow's exceptions are subclasses
        raise UserError(f"{path} is broken ({one_line(error):.200})") from None


def _read_batches(batches: Iterator[pyarrow.RecordBatch], folder: Path, split: str, name: str) -> Iterator[FoundImage]:
    number = 0
    for batch in batches:
        batch.validate(full=True)  # otherwise invalid offsets would be followed beyond the file
        image, label = (_choose_column(batch.schema.names, names, name) for names in (IMAGE_COLUMNS, LABEL_COLUMNS))
        classes = read_class_names(batch.schema, label)
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            for value, known in zip(part.column(image).to_pylist(), part.column(label).to_pylist(), strict=True):
                number += 1
                yield _read_cell(f"{name}:{number}", value, _name_label(known, classes), split, folder)


def _choose_column(names: Sequence[str], wanted: Sequence[str], source: str) -> str:
    found = [column for column in wanted if column in names]
    if not found:
        raise UserError(f"{source} has no column {' or '.join(wanted)}; it has {', '.join(names):.200}: rename the column")
    return found[0]


def _read_cell(place: str, value: object, label: str | None, split: str, folder: Path) -> FoundImage:
    """Read the image of a row: an image column holds the bytes of a file, or its path."""
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        return FoundImage(place, value["bytes"], label, split)
    name = value.get("path") if isinstance(value, dict) else value
    if isinstance(value, bytes):
        return FoundImage(place, value, label, split)
    if not isinstance(name, str):
        return FoundImage(place, b"", label, split, "no image in its column")
    try:
        return _locate_image(place, folder, name, label, split)
    except UserError as error:
        return FoundImage(place, b"", label, split, str(error))


def read_class_names(schema: pyarrow.Schema, column: str) -> tuple[str, ...]:
    """Return names of the classes of a column, which `datasets` stores in the schema; empty if it has none."""
    try:
        document = strict_json.loads_object((schema.metadata or {})[b"huggingface"])
        names = document["info"]["features"][column]["names"]
    except (KeyError, TypeError, UserError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()
