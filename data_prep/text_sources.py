"""Rows of conversation files, one at a time and each with its place: JSONL, JSON, CSV, Parquet, and folders that `datasets` saved."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import UserError

ARROW = "data_prep text: {} needs pyarrow: pip install 'overtone[text]'"


@dataclass(frozen=True)
class Source:
    """One file, or one folder that `datasets` saved."""

    path: Path
    name: str
    """As it is told: relative to the folder of what was named on the command line."""
    kind: str


@dataclass(frozen=True)
class Found:
    """One row, or why there is none."""

    place: str
    """name:line, or name:row where there are no lines; from 1."""
    row: dict[str, Any] | None
    problem: str = ""


def find(places: list[Path]) -> list[Source]:
    """What lies in files and folders: in the order given, folders by name. Raises `UserError` for a place without any."""
    return [source for place in places for source in _in(place)]


def _in(place: Path) -> list[Source]:
    if not place.exists():
        raise UserError(f"{place} does not exist; give files ({', '.join(KINDS)}) or folders of them")
    root = place.resolve().parent
    paths = sorted(_visible(place)) if place.is_dir() else [place.resolve()]
    found = [Source(path, path.relative_to(root).as_posix(), kind) for path in paths if (kind := kind_of(path))]
    if not found:
        raise UserError(f"{place} holds nothing to read; known are {', '.join(KINDS)} and folders that `datasets` saved")
    return found


def _visible(folder: Path) -> Iterator[Path]:
    """Files below a folder, and whole folders that `datasets` saved; hidden ones are passed over."""
    folder = folder.resolve()
    if kind_of(folder):
        yield folder
        return
    for path in folder.iterdir():
        if not path.name.startswith("."):
            yield from _visible(path) if path.is_dir() else [path]


def kind_of(path: Path) -> str | None:
    if path.is_dir():
        return "dataset" if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file() else None
    return path.suffix.lower() if path.suffix.lower() in KINDS else None


def rows(source: Source) -> Iterator[Found]:
    """Every row. Raises `UserError` if the file as a whole cannot be read."""
    reader = _dataset if source.kind == "dataset" else KINDS[source.kind]
    try:
        yield from reader(source)
    except OSError as error:
        raise UserError(f"{source.path} cannot be read: {error}") from error


def _jsonl(source: Source) -> Iterator[Found]:
    with source.path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                yield _parsed(f"{source.name}:{number}", raw)


def _parsed(place: str, raw: bytes) -> Found:
    try:
        row = json.loads(raw)
    except ValueError as error:
        return Found(place, None, f"not JSON ({error})")
    return _as_row(place, row)


def _as_row(place: str, row: Any) -> Found:
    return Found(place, row) if isinstance(row, dict) else Found(place, None, f"not an object in braces but {type(row).__name__}")


def _json(source: Source) -> Iterator[Found]:
    """A whole document in memory: an array, or an object that holds exactly one."""
    try:
        whole = json.loads(source.path.read_bytes())
    except ValueError as error:
        raise UserError(f"{source.path} is not JSON ({error}); one object a line goes by the name .jsonl") from None
    lists = [value for value in whole.values() if isinstance(value, list)] if isinstance(whole, dict) else [whole]
    if len(lists) != 1 or not isinstance(lists[0], list):
        raise UserError(f"{source.path} must hold an array of rows, or an object with one such array")
    for number, row in enumerate(lists[0], start=1):
        yield _as_row(f"{source.name}:{number}", row)


def _csv(source: Source) -> Iterator[Found]:
    csv.field_size_limit(sys.maxsize)
    with source.path.open(encoding="utf-8-sig", newline="") as file:
        try:
            for number, row in enumerate(csv.DictReader(file, strict=True), start=1):
                place = f"{source.name}:{number}"
                if None in row or None in row.values():
                    yield Found(place, None, "it has another number of columns than the header")
                else:
                    yield Found(place, dict(row))
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{source.path} is not a CSV file in UTF-8 ({error})") from None


def _parquet(source: Source) -> Iterator[Found]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(ARROW.format(source.path.name)) from None
    try:
        with parquet.ParquetFile(source.path) as file:
            yield from _batches(source.name, file.iter_batches())
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{source.path} is not a Parquet file ({error})") from None


def _dataset(source: Source) -> Iterator[Found]:
    """`Dataset.save_to_disk`: Arrow streams named by state.json; a `DatasetDict` holds one such folder for each split."""
    try:
        import pyarrow
    except ImportError:
        raise UserError(ARROW.format(f"the folder {source.path.name}")) from None
    dictionary = source.path / "dataset_dict.json"
    splits = json.loads(dictionary.read_text())["splits"] if dictionary.is_file() else [None]
    for split in splits:
        folder, name = (source.path / split, f"{source.name}/{split}") if split else (source.path, source.name)
        state = json.loads((folder / "state.json").read_text())

        def batches(folder: Path = folder, state: Any = state) -> Iterator[Any]:
            for data in state["_data_files"]:
                with pyarrow.memory_map(str(folder / data["filename"])) as mapped:
                    yield from pyarrow.ipc.open_stream(mapped)

        yield from _batches(name, batches())


def _batches(name: str, batches: Iterator[Any]) -> Iterator[Found]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield Found(f"{name}:{number}", without_nulls(row))


def without_nulls(value: Any) -> Any:
    """Arrow gives every struct of a column all keys, with null where there was none; JSON has none there."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


KINDS: dict[str, Callable[[Source], Iterator[Found]]] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
