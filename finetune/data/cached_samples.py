"""Random access to the cached samples of a JSONL file by its index of lengths, offsets and checksums, in constant memory.

Training reads only the sample cache, and verifies each sample by its checksum. finetune/data/index_building.py writes index and cache.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files, strict_json

if TYPE_CHECKING:
    from torch import Tensor

Ids = NDArray[np.int64]
COLUMNS = 8
"""Columns of the index: byte offset, bytes, positions, line number and checksum of a row; offset, bytes and checksum of its sample."""
REFERENCE, REFERENCE_PARTS = ".reference", ".parts"
"""Endings of the predictions of the base beside an index, and of the folder in which they are computed."""
HASHED_AT_ONCE = 2047
"""Maximum number of bytes hashed at once. From 2,048 on, hashlib releases the interpreter lock, and reacquiring it takes longer than
hashing a sample."""


class SamplesFile:
    """Random access to a sample cache, by memory mapping: a read copies memory and keeps the interpreter lock, while a system call would
    release it, and reacquiring it takes longer than reading a sample."""

    def __init__(self, path: Path) -> None:
        self.path = path
        input_files.require_regular(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._descriptor).st_size
        self._bytes = mmap.mmap(self._descriptor, self._size, access=mmap.ACCESS_READ) if self._size else b""

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # not if it could not be opened
            os.close(self._descriptor)

    def announce(self, places: Iterable[Sequence[int]]) -> None:
        """Ask the kernel to prefetch these ranges (offset, bytes). Raises `UserError` if the file was truncated: a read past its end would
        kill the process with SIGBUS."""
        if os.fstat(self._descriptor).st_size < self._size:
            raise UserError(f"{self.path} was truncated after it was written; {suggest_rebuild(self.path)}")
        for offset, size in places:
            if isinstance(self._bytes, mmap.mmap) and 0 <= offset < self._size and 0 < size <= self._size - offset:
                begin = offset - offset % mmap.PAGESIZE
                self._bytes.madvise(mmap.MADV_WILLNEED, begin, offset + size - begin)

    def read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes. Raises `ValueError` for a range outside of the file, as in a forged index."""
        if not (0 <= offset <= self._size and 0 <= size <= self._size - offset):
            raise ValueError(f"{size:,} bytes from byte {offset:,} on, of {self._size:,}")
        return bytes(self._bytes[offset : offset + size])


class RowPredictions(NamedTuple):
    """Predictions of the frozen base for one row."""

    row: int
    own: Tensor
    """[N] of the row, fp32 or fp64."""
    mismatched: Tensor
    """[M] of its prompt with another row's answer; empty if the loss needs none."""


@dataclass(frozen=True)
class Rows:
    """A JSONL file through its index."""

    path: Path
    index: Ids
    """[rows, COLUMNS]."""
    digest: str
    """SHA-256 of the file."""
    samples: SamplesFile
    """The sample cache."""
    left_out: dict[str, list[int]] = field(default_factory=dict)
    """Reason → line numbers of the rows that were dropped for that reason."""
    cut: int = 0
    """Number of truncated rows."""
    unused: dict[str, int] = field(default_factory=dict)
    """Unused part of rows → number of rows that have it."""
    predictions: Callable[[int], RowPredictions] | None = None
    """Returns what the frozen base predicts for a row, if that was computed before training."""

    @property
    def lengths(self) -> Ids:
        return self.index[:, 2]

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def _longest(self) -> int:
        return int(self.lengths.max())

    def longest_beside(self, _row: int) -> int:
        """Return the positions of the longest row in the file of this row."""
        return self._longest

    def where(self, row: int) -> str:
        return f"{self.path}:{self.index[row, 3]}"

    def list_not_longer(self, row: int) -> Ids:
        """Return the rows of the file of this row that are not longer, itself included [rows]."""
        return np.flatnonzero(self.lengths <= self.lengths[row])

    def previous(self, row: int) -> int:
        """Number of the row before this one; the last row precedes the first."""
        return (row - 1) % len(self)

    def predict(self, row: int) -> RowPredictions | None:
        """Return what the frozen base predicts for a row; None if that is computed in each step."""
        return None if self.predictions is None else self.predictions(row)

    def cache_of(self, _row: int) -> Path:
        """Return the path of the sample cache with this row."""
        return self.samples.path

    def announce(self, rows: Iterable[int]) -> None:
        """Prefetch the samples of these rows. Raises `UserError` if the cache was truncated."""
        self.samples.announce(self.index[[*rows], 5:7].tolist())

    def sample(self, row: int) -> bytearray:
        """Return the record of a row in the sample cache. Raises `UserError` if it does not match its checksum."""
        offset, size, checksum = self.index[row, 5:].tolist()
        try:
            record = self.samples.read(offset, size)
        except ValueError as error:
            raise UserError(f"its cached sample cannot be read ({error}); {suggest_rebuild(self.samples.path)}") from error
        if compute_checksum(record) != checksum:
            raise UserError(f"its cached sample was changed after it was written; {suggest_rebuild(self.samples.path)}")
        return bytearray(record)


def suggest_rebuild(samples: Path) -> str:
    """Return the next action for a damaged sample cache, for messages."""
    return f"delete {samples} and run the same command, which builds it again and resumes from the last checkpoint"


def compute_checksum(raw: bytes) -> int:
    """64-bit BLAKE2b as a signed integer, as stored in the index."""
    total = hashlib.blake2b(digest_size=8)
    for start in range(0, len(raw), HASHED_AT_ONCE):
        total.update(raw[start : start + HASHED_AT_ONCE])
    return int.from_bytes(total.digest(), "little", signed=True)


def open_rows(path: Path, cache: Path, built: str | None = None) -> Rows:
    """Open a file with the index that `index_building.build_index` has written to `cache`. Raises `UserError` if one of the two is missing,
    or if the digest of the index is not `built`, the one that `build_index` returned."""
    place = index_path(path, cache)
    try:
        head, begins = read_head(place)
        if built is not None and head["index_digest"] != built:  # ranks with different lengths would train in different orders
            raise UserError(
                f"another process, such as `overtone plan` with other options, has just indexed {path} again in {cache}; run them one "
                "after the other, or with different --run.dir"
            )
        index = np.asarray(np.memmap(place, np.int64, "r", offset=begins, shape=(head["rows"], COLUMNS)))  # whose rows are cheaper to take
        return Rows(path, index, head["digest"], SamplesFile(samples_path(place)), head["left_out"], head["cut"], head["unused"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} or its index {place} cannot be read ({strict_json.one_line(error)}), though rank 0 has just read it; with several "
            "machines, data and run.dir must be on a disk that all of them share"
        ) from error


def index_path(path: Path, cache: Path) -> Path:
    """Return the path of the index of a data file; unique for files of the same name in different folders."""
    return cache / f"{path.stem}-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}.index"


def samples_path(index: Path) -> Path:
    """Return the path of the sample cache of an index."""
    return index.with_suffix(".samples")


def files_path(index: Path) -> Path:
    """Return the path of the list of files that the rows of an index name; it exists only if there are any."""
    return index.with_suffix(".files")


def read_head(place: Path) -> tuple[dict[str, Any], int]:
    """Return the JSON header of an index, and the offset of the numbers after it. Raises `ValueError` for an invalid header."""
    with input_files.open_file(place) as file:
        head = strict_json.loads(file.readline())
        if not isinstance(head, dict):
            raise ValueError("its first line is not a JSON object")
        return head, file.tell()
