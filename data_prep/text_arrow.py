"""Rows of Arrow tables: Parquet, and folders that `datasets` saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.text_shapes import SHAPES
from data_prep.text_sources import Found, Source, is_plain_name
from finetune.errors import UserError
from finetune.strict_json import one_line, read_object

if TYPE_CHECKING:
    import pyarrow

READ = frozenset[str]().union(*(shape.keys | shape.also for shape in SHAPES.values()))
"""Columns of which somebody wants the values."""


def parquet(source: Source) -> Iterator[Found]:
    """Row groups, one after the other."""
    with _told(source):
        from pyarrow import parquet

        with parquet.ParquetFile(source.path) as file:
            yield from _rows(source, file.iter_batches())


def saved_by_datasets(source: Source) -> Iterator[Found]:
    """`Dataset.save_to_disk`: Arrow streams, which state.json names."""
    with _told(source):
        yield from _rows(source, _streamed(_data_files(source.path)))


@contextmanager
def _told(source: Source) -> Iterator[None]:
    """What pyarrow says about a broken file, as one sentence about the source.

    Besides its own exceptions it raises those of Python, of whatever step found the fault.
    """
    try:
        import pyarrow
    except ImportError:
        raise UserError(f"{source.path} needs pyarrow: pip install 'overtone[text]'") from None
    try:
        yield
    except (pyarrow.ArrowException, ValueError, ArithmeticError, RecursionError) as error:
        raise UserError(f"{source.path} is broken ({one_line(error):.200})") from None


def _data_files(folder: Path) -> list[Path]:
    state = read_object(folder / "state.json")
    if wanted := [key for key, value in state.items() if key.startswith("_indices") and value]:
        raise UserError(f"{folder} chooses among its rows by {wanted[0]}, which is not read; load it, flatten_indices(), and save it anew")
    entries = state.get("_data_files")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and is_plain_name(entry.get("filename")) for entry in entries):
        raise UserError(f"{folder / 'state.json'}: _data_files must name files beside it, found {entries!r:.60}")
    return [folder / entry["filename"] for entry in entries]


def _streamed(paths: list[Path]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow

    for path in paths:
        with pyarrow.memory_map(str(path)) as mapped:
            yield from pyarrow.ipc.open_stream(mapped)


def _rows(source: Source, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[Found]:
    number = 0
    for batch in batches:
        batch.validate(full=True)  # or broken offsets would be followed out of the file
        for row in _plain(source, batch):
            number += 1
            yield Found(f"{source.name}:{number}", _without_nulls(row))


def _plain(source: Source, batch: pyarrow.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows with the columns that shapes read. Of any other only whether it is there: not every time or number has its like in Python."""
    names = batch.schema.names
    if len(set(names)) < len(names):
        raise UserError(f"{source.path} has two columns of one name ({', '.join(names):.200})")
    columns = [
        column.to_pylist() if name in READ else [known or None for known in column.is_valid().to_pylist()]
        for name, column in zip(names, batch.columns, strict=True)
    ]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _without_nulls(value: Any) -> Any:
    """Arrow gives every struct of a column all keys, with null where there was none; JSON has none there."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
