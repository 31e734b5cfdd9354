"""Reader for Arrow tables: Parquet files, and folders saved by `datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.data_prep.chats.chat_file_search import ChatSource, FoundRow, is_plain_name
from overtone.data_prep.chats.chat_messages import ROW_MARKS
from overtone.data_prep.chats.conversation_formats import LABELS, SCORES, SHAPES
from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files
from overtone.finetune.storage.strict_json import one_line, read_object

if TYPE_CHECKING:
    import pyarrow

READ = frozenset(ROW_MARKS).union(LABELS, *SCORES, *(shape.keys | shape.also for shape in SHAPES.values()))
"""Columns whose values are read."""


def read_parquet(source: ChatSource, columns: frozenset[str] = frozenset()) -> Iterator[FoundRow]:
    """Yield the rows of a Parquet file, batch by batch. `columns`: whose values are read besides `READ`."""
    with _explain_errors(source):
        from pyarrow import parquet

        with input_files.open_file(source.path) as opened, parquet.ParquetFile(opened) as file:
            yield from _convert_batches(source, file.iter_batches(), columns)


def read_saved_dataset(source: ChatSource, columns: frozenset[str] = frozenset()) -> Iterator[FoundRow]:
    """Yield the rows of a folder of `Dataset.save_to_disk`: Arrow streams listed in state.json."""
    with _explain_errors(source):
        yield from _convert_batches(source, read_streams(list_data_files(source.path)), columns)


@contextmanager
def _explain_errors(source: ChatSource) -> Iterator[None]:
    """Convert errors of pyarrow into a `UserError` that names the source.

    pyarrow raises its own exceptions and Python's.
    """
    try:
        import pyarrow
    except ImportError:
        raise UserError(f"{source.path} needs pyarrow: pip install 'overtone[text]'") from None
    try:
        yield
    except (pyarrow.ArrowException, ValueError, ArithmeticError, RecursionError) as error:
        raise UserError(f"{source.path} is broken ({one_line(error):.200})") from None


def list_data_files(folder: Path) -> list[Path]:
    """Return the Arrow streams of a folder of `Dataset.save_to_disk`. Raises `UserError` for one that selects rows."""
    state = read_object(folder / "state.json")
    if wanted := [key for key, value in state.items() if key.startswith("_indices") and value]:
        raise UserError(f"{folder} selects rows by {wanted[0]}, which is not supported; load it, call flatten_indices(), and save it again")
    entries = state.get("_data_files")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and is_plain_name(entry.get("filename")) for entry in entries):
        raise UserError(f"{folder / 'state.json'}: _data_files must name files beside it, found {entries!r:.60}")
    return [folder / entry["filename"] for entry in entries]


def read_streams(paths: Sequence[Path]) -> Iterator[pyarrow.RecordBatch]:
    """Yield the batches of Arrow streams. Raises `OSError`, also for a pipe, a device or a socket, and the errors of pyarrow."""
    import pyarrow

    for path in paths:
        input_files.require_regular(path)
        with pyarrow.memory_map(str(path)) as mapped:
            yield from pyarrow.ipc.open_stream(mapped)


def _convert_batches(source: ChatSource, batches: Iterator[pyarrow.RecordBatch], columns: frozenset[str]) -> Iterator[FoundRow]:
    number = 0
    for batch in batches:
        batch.validate(full=True)  # otherwise invalid offsets would be followed beyond the file
        for row in _convert_batch(source, batch, READ | columns):
            number += 1
            kept = {key: _drop_nulls(value) for key, value in row.items() if value is not None}
            yield FoundRow(f"{source.name}:{number}", kept)


def _convert_batch(source: ChatSource, batch: pyarrow.RecordBatch, read: frozenset[str]) -> Iterator[dict[str, object]]:
    """Yield rows with the columns that shapes read; other columns only as present or None, since not all types convert to Python."""
    names = batch.schema.names
    if len(set(names)) < len(names):
        raise UserError(f"{source.path} has duplicate column names ({', '.join(names):.200})")
    columns = [
        column.to_pylist() if name in read else [known or None for known in _find_filled(column)]
        for name, column in zip(names, batch.columns, strict=True)
    ]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _find_filled(column: pyarrow.Array) -> list[bool | None]:
    """Return whether each value is there: neither null nor an empty list."""
    from pyarrow import compute, types

    if types.is_list(column.type) or types.is_large_list(column.type):
        return [length is not None and length > 0 for length in compute.list_value_length(column).to_pylist()]
    filled: list[bool | None] = column.is_valid().to_pylist()
    return filled


def _drop_nulls(value: object) -> object:
    """Remove null values: Arrow gives every struct of a column all keys, with null for missing ones."""
    if isinstance(value, dict):
        return {key: _drop_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_drop_nulls(inner) for inner in value] if isinstance(value, list) else value
