"""A JSONL file by row number, through an index of byte offsets and lengths: memory does not grow with the file."""

from __future__ import annotations

import hashlib
import json
import mmap
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune import files
from finetune.errors import UserError

Ids = NDArray[np.int64]
SHOWN_PROBLEMS = 10
COLUMNS = 4
"""Of the index: byte offset, bytes, positions, line number."""


class Measured(NamedTuple):
    """What training makes of a row."""

    positions: int
    """As it is trained on."""
    left_out: str | None = None
    """Why it is not trained on at all."""
    cut: bool = False
    """Whether only its beginning is trained on."""


Measure = Callable[[dict[str, Any]], Measured]
"""Raises `UserError` for a row that must not be there."""


@dataclass(frozen=True)
class Rows:
    """A JSONL file through its index."""

    path: Path
    text: mmap.mmap | bytes
    index: Ids
    """[rows, COLUMNS]."""
    digest: str
    """SHA-256 of the file."""
    left_out: dict[str, list[int]] = field(default_factory=dict)
    """Reason → line numbers of the rows that are not trained on for it."""
    cut: int = 0
    """Rows of which only the beginning is trained on."""

    @property
    def lengths(self) -> Ids:
        return self.index[:, 2]

    def __len__(self) -> int:
        return len(self.index)

    def where(self, row: int) -> str:
        return f"{self.path}:{self.index[row, 3]}"

    def read(self, row: int) -> dict[str, Any]:
        offset, size = int(self.index[row, 0]), int(self.index[row, 1])
        value: dict[str, Any] = json.loads(self.text[offset : offset + size])
        return value


def open_rows(path: Path, cache: Path) -> Rows:
    """Open a file whose index `build_index` has made in `cache`."""
    place = index_path(path, cache)
    head, begins = read_head(place)
    index = np.memmap(place, np.int64, "r", offset=begins, shape=(head["rows"], COLUMNS))
    with path.open("rb") as file:
        return Rows(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), index, head["digest"], head["left_out"], head["cut"])


def index_path(path: Path, cache: Path) -> Path:
    """Two files of the same name in different folders must not share an index."""
    return cache / f"{path.stem}-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}.index"


def read_head(place: Path) -> tuple[dict[str, Any], int]:
    """The first line of an index, which says what it belongs to, and where the numbers behind it begin."""
    with place.open("rb") as file:
        head: dict[str, Any] = json.loads(file.readline())
        return head, file.tell()


def build_index(path: Path, cache: Path, key: str, measure: Measure) -> None:
    """Measure every row once; store offsets, lengths and line numbers of those that are trained on, and which ones are not and why.

    Kept under `cache`, not beside the data: data may be read-only, and lengths depend on the recipe. An index of the same file and `key`
    is used as it is. Raises `UserError` listing the bad rows by file:line.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; `python -m data_prep voice RECORDINGS --out FOLDER` makes one")
    place, stat = index_path(path, cache), path.stat()
    of = {"key": key, "path": str(path.resolve()), "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}
    if place.is_file() and of.items() <= read_head(place)[0].items():
        return
    found = _scan(path, measure)
    if found.problems:
        more = f"\n  … and {len(found.problems) - SHOWN_PROBLEMS} more" if len(found.problems) > SHOWN_PROBLEMS else ""
        raise UserError(f"{len(found.problems)} bad rows:\n  " + "\n  ".join(found.problems[:SHOWN_PROBLEMS]) + more)
    if not found.entries:
        raise UserError(f"{path}: no rows; there is nothing to train on{_why_none(found.left_out)}")
    rows = len(found.entries) // COLUMNS
    head = json.dumps({**of, "digest": found.digest, "rows": rows, "left_out": found.left_out, "cut": found.cut})
    padding = " " * (-(len(head.encode()) + 1) % 8)  # the numbers behind it are read in place, so they must be aligned
    files.write_bytes(place, f"{head}{padding}\n".encode() + found.entries.tobytes())


def _why_none(left_out: dict[str, list[int]]) -> str:
    return "".join(f"; {len(lines)} left out: {reason}" for reason, lines in left_out.items())


class _Scanned(NamedTuple):
    entries: array[int]
    problems: list[str]
    left_out: dict[str, list[int]]
    cut: int
    digest: str


def _scan(path: Path, measure: Measure) -> _Scanned:
    entries, problems, digest = array("q"), [], hashlib.sha256()
    left_out: dict[str, list[int]] = {}
    offset = cut = 0
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            digest.update(raw)
            if raw.strip():
                try:
                    found = measure(parse_row(raw))
                except UserError as error:
                    problems.append(f"{path}:{line}: {error}")
                else:
                    cut += found.cut
                    if found.left_out is None:
                        entries.extend((offset, len(raw), found.positions, line))
                    else:
                        left_out.setdefault(found.left_out, []).append(line)
            offset += len(raw)
    return _Scanned(entries, problems, left_out, cut, digest.hexdigest())


def parse_row(raw: bytes) -> dict[str, Any]:
    """One line of JSONL. Raises `UserError` saying what is wrong with it."""
    try:
        row = json.loads(raw)
    except ValueError as error:
        raise UserError(f"not a line of JSON ({error})") from None
    if not isinstance(row, dict):
        raise UserError(f"expected an object in braces, found {type(row).__name__}")
    return row
