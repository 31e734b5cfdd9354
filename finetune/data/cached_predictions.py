"""Predictions of the frozen base for each row of a data file, computed once: one file beside the sample cache of the row.

A file has a header, an index and the predictions. `CacheKey` identifies everything that they depend on. A file with another key, and one
that does not match its digests, is not read. finetune/training/reference_cache.py computes the predictions; until all are there, they are
in parts of the same format, so that a killed run loses only what it computed last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from overtone.finetune.data.cached_samples import Ids, RowPredictions, SamplesFile, compute_checksum, read_head, suggest_rebuild
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files, strict_json

FORMAT = 2
COLUMNS = 4
"""Columns of the index: number of the row, bytes of its own predictions, bytes of those of its prompt with another row's answer, checksum
of both."""
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class StalePredictionsError(Exception):
    """The file cannot be used; the message is the reason."""


@dataclass(frozen=True)
class CacheKey:
    """Everything that the predictions of a data file depend on."""

    base: str
    """Digest of the base's weights and configuration."""
    quantization: str
    """`model.quantization`, null if the base has plain weights."""
    packed: str
    """Digest of the names of the weights that the quantization packs."""
    data: str
    """Digest of the data file."""
    samples: str
    """Digest of the tokens of all rows, which depend on the tokenizer, the chat template and options: of the lengths and checksums in their
    index."""
    precision: str
    """`train.precision`."""
    device: str
    """Type of the device, on which the rounding depends."""
    batches: str
    """Settings that divide the rows into micro-batches, on which the rounding depends."""
    answers: str
    """Answers that have predictions, as a phrase."""
    code: str
    """Version of the code that computes them."""

    def find_difference(self, stored: object) -> str | None:
        """Return how the key that a file has `stored` differs, as a phrase; None if it is this one."""
        was = stored if isinstance(stored, Mapping) else {}
        reasons = {
            "base": "it is of another base",
            "quantization": f"it was computed with model.quantization: {was.get('quantization')}",
            "packed": "other layers of the base were packed to 4 bits: model.lora.targets is another one",
            "data": "it is of other data",
            "samples": "its rows have other tokens: the tokenizer, the chat template or an option that changes them is another one",
            "precision": f"it was computed with train.precision: {was.get('precision')}",
            "device": f"it was computed on another type of device: {was.get('device')}",
            "batches": "its rows were divided into other micro-batches",
            "answers": f"it was computed for {was.get('answers')}",
            "code": "it was computed by another version of the code",
        }
        return next((reasons[name] for name, value in asdict(self).items() if was.get(name) != value), None)


class CachedPredictions:
    """A verified file of predictions."""

    def __init__(self, path: Path, key: CacheKey) -> None:
        """Raises `StalePredictionsError` for a file with another key, and for a damaged or unreadable one."""
        self.path = path
        try:
            head, begin = read_head(path)
            if head["format"] != FORMAT:
                raise StalePredictionsError("it has the format of another program version")
            if difference := key.find_difference(head["key"]):
                raise StalePredictionsError(difference)
            with input_files.open_file(path) as file:
                file.seek(begin)
                table = file.read(head["rows"] * COLUMNS * 8)
            if hashlib.sha256(table).hexdigest() != head["index_digest"]:
                raise StalePredictionsError("its index is damaged: it does not match its digest")
            self.dtype = DTYPES[head["dtype"]]
            self.index: Ids = np.frombuffer(table, np.int64).reshape(head["rows"], COLUMNS)
            self._file = SamplesFile(path)
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise StalePredictionsError(f"it cannot be read ({strict_json.one_line(error)})") from error
        sizes = self.index[:, 1] + self.index[:, 2]
        self._offsets = begin + len(table) + np.cumsum(sizes) - sizes
        self._places = {int(row): place for place, row in enumerate(self.index[:, 0])}

    @property
    def rows(self) -> frozenset[int]:
        """Numbers of the rows in this file."""
        return frozenset(self._places)

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.path.stat().st_size

    def read(self, row: int) -> RowPredictions:
        """Return the predictions of a row. Raises `UserError` if they do not match their checksum."""
        place = self._places[row]
        _, own, mismatched, checksum = self.index[place].tolist()
        try:
            record = self._file.read(int(self._offsets[place]), own + mismatched)
        except ValueError as error:
            raise UserError(f"its cached reference cannot be read ({error}); {suggest_rebuild(self.path)}") from error
        if compute_checksum(record) != checksum:
            raise UserError(f"its cached reference was changed after it was written; {suggest_rebuild(self.path)}")
        values = torch.frombuffer(bytearray(record), dtype=self.dtype) if record else torch.zeros(0, dtype=self.dtype)
        return RowPredictions(row, *values.split([own // self.dtype.itemsize, mismatched // self.dtype.itemsize]))

    def verify(self) -> None:
        """Read all rows. Raises `StalePredictionsError` for a damaged one."""
        try:
            for row in self._places:
                self.read(row)
        except UserError as error:
            raise StalePredictionsError(str(error)) from error


def write_predictions(path: Path, key: CacheKey, found: Iterable[RowPredictions], index: Ids, dtype: torch.dtype) -> None:
    """Write a file atomically. `index` [rows, COLUMNS] of `found`, which is streamed; `dtype`: of all predictions."""
    table = np.ascontiguousarray(index).tobytes()
    name = next(name for name, each in DTYPES.items() if each == dtype)
    facts = {"format": FORMAT, "key": asdict(key), "rows": len(index), "dtype": name, "index_digest": hashlib.sha256(table).hexdigest()}

    head = json.dumps(facts).encode() + b"\n"
    files.write_stream(path, chain([head, table], (to_bytes(each.own) + to_bytes(each.mismatched) for each in found)))


def write_part(folder: Path, number: int, key: CacheKey, found: list[RowPredictions]) -> None:
    """Write the part with this `number`, at least one row."""
    index = [
        (each.row, each.own.nbytes, each.mismatched.nbytes, compute_checksum(to_bytes(each.own) + to_bytes(each.mismatched)))
        for each in found
    ]
    write_predictions(folder / f"{number:08d}", key, found, np.array(index, np.int64), found[0].own.dtype)


def to_bytes(values: Tensor) -> bytes:
    return values.numpy().tobytes()


def open_parts(folder: Path, key: CacheKey) -> list[CachedPredictions]:
    """Return the parts that a killed run has left, verified. Those that cannot be used are removed. Makes the folder if it is missing."""
    found = []
    files.remove_unfinished(files.make_folder(folder))
    for path in sorted(folder.glob("[0-9]*")):
        try:
            part = CachedPredictions(path, key)
            part.verify()
            found.append(part)
        except StalePredictionsError:
            files.discard(path)
    return found


def merge_parts(path: Path, folder: Path, key: CacheKey) -> None:
    """Write the file of all parts, by row, and remove them."""
    parts = open_parts(folder, key)
    owners = {row: part for part in parts for row in part.rows}
    index = np.concatenate([part.index for part in parts])
    index = index[np.argsort(index[:, 0], kind="stable")]
    write_predictions(path, key, (owners[row].read(row) for row in index[:, 0].tolist()), index, parts[0].dtype)
    files.discard(folder)
