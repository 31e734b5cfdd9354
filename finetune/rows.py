"""A JSONL file by row number, through an index of byte offsets, lengths and checksums: memory does not grow with the file.

What a run trains on is what it indexed. At each start a file of up to `DIGESTED_BYTES` is digested; a larger one counts as the indexed one
while its size and times are the same. During the run each row is checked against its checksum when it is read, whatever the file's size.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune import files, strict_json
from finetune.errors import UserError

Ids = NDArray[np.int64]
SHOWN_PROBLEMS = 10
COLUMNS = 5
"""Of the index: byte offset, bytes, positions, line number, checksum of the row's bytes."""
FORMAT = 2
"""Of the index. 1 had no checksums."""
DIGESTED_BYTES = 2 * 2**30
"""Up to here a file is read as a whole at each start: two seconds at the 1 GB/s and more of SHA-256 on a processor of today."""
BLOCK_BYTES = 2**18


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


class DataFile:
    """A file's bytes by offset, through one descriptor that is open as long as this object.

    It is read, not mapped: a mapped file that is truncated ends the process with SIGBUS. A file that is replaced by renaming another one
    over it keeps its old content for this object.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # not if it could not be opened
            os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Fewer than `size` bytes only where the file ends. Threads may read at the same time."""
        parts, left = [], size
        while left and (part := os.pread(self._descriptor, left, offset + size - left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


@dataclass(frozen=True)
class Rows:
    """A JSONL file through its index."""

    path: Path
    file: DataFile
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
        """Raises `UserError` for a row that is not the one that was indexed: the file was rewritten, truncated, or cannot be read."""
        offset, size, checksum = (int(self.index[row, column]) for column in (0, 1, 4))
        try:
            raw = self.file.read(offset, size)
        except OSError as error:
            raise UserError(f"this row cannot be read any more ({strict_json.one_line(error)}); {RESTORE}") from error
        if len(raw) < size:
            raise UserError(
                f"the file was truncated after it was indexed: of this row, {size:,} bytes from byte {offset:,} on, {len(raw):,} are left; "
                + RESTORE
            )
        if checksum_of(raw) != checksum:
            raise UserError(f"this row is not the one that was indexed: the file was rewritten since then; {RESTORE}")
        value: dict[str, Any] = json.loads(raw)  # `_scan` has accepted these very bytes
        return value


RESTORE = (
    "nothing was trained on it. Restore the file as it was and run the same command, which resumes from the last checkpoint; "
    "to train on other data, choose another --run.dir"
)


def checksum_of(raw: bytes) -> int:
    """BLAKE2b, 64 bits, as a signed integer: what a column of the index holds."""
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little", signed=True)


def open_rows(path: Path, cache: Path) -> Rows:
    """Open a file whose index `build_index` has made in `cache`. Raises `UserError` if one of the two is gone by now."""
    place = index_path(path, cache)
    try:
        head, begins = read_head(place)
        index = np.memmap(place, np.int64, "r", offset=begins, shape=(head["rows"], COLUMNS))
        return Rows(path, DataFile(path), index, head["digest"], head["left_out"], head["cut"])
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{path} or its index {place} cannot be read ({strict_json.one_line(error)}), which was there a moment ago; if this is another "
            "machine, data and run.dir must be on a disk that all of them share"
        ) from error


def index_path(path: Path, cache: Path) -> Path:
    """Two files of the same name in different folders must not share an index."""
    return cache / f"{path.stem}-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}.index"


def read_head(place: Path) -> tuple[dict[str, Any], int]:
    """The first line of an index, which says what it belongs to, and where the numbers behind it begin. Raises `ValueError` for garbage."""
    with place.open("rb") as file:
        head = strict_json.loads(file.readline())
        if not isinstance(head, dict):
            raise ValueError("its first line is no object")
        return head, file.tell()


def build_index(path: Path, cache: Path, key: str, measure: Measure) -> None:
    """Measure every row once; store where those are that are trained on, with checksums, and which ones are not and why.

    Kept under `cache`, not beside the data: data may be read-only, and lengths depend on the recipe. An index of the same content and `key`
    is used as it is; why another one is not is printed. Raises `UserError` listing the bad rows by file:line.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; `python -m data_prep voice RECORDINGS --out FOLDER` makes one")
    place, stat = index_path(path, cache), path.stat()
    of = {"format": FORMAT, "key": key, "bytes": stat.st_size}
    times = {"modified_ns": stat.st_mtime_ns, "changed_ns": stat.st_ctime_ns}
    if place.exists():
        stale = _why_stale(place, of, times, path)
        if stale is None:
            return
        print(f"indexing {path} again: {stale}", file=sys.stderr, flush=True)
    found = _scan(path, measure)
    if found.problems:
        more = f"\n  … and {len(found.problems) - SHOWN_PROBLEMS} more" if len(found.problems) > SHOWN_PROBLEMS else ""
        raise UserError(f"{len(found.problems)} bad rows:\n  " + "\n  ".join(found.problems[:SHOWN_PROBLEMS]) + more)
    if not found.entries:
        raise UserError(f"{path}: no rows; there is nothing to train on{_why_none(found.left_out)}")
    numbers = memoryview(found.entries).cast("B")
    facts = {
        **of, **times, "path": str(path.resolve()), "bytes": found.bytes, "digest": found.digest,
        "rows": len(found.entries) // COLUMNS, "left_out": found.left_out, "cut": found.cut,
    }  # fmt: skip
    head = json.dumps({**facts, "index_digest": _digest_of_index(facts, [numbers])})
    padding = " " * (-(len(head.encode()) + 1) % 8)  # the numbers behind it are read in place, so they must be aligned
    files.write_bytes(place, b"".join([f"{head}{padding}\n".encode(), numbers]))


def _why_stale(place: Path, of: dict[str, Any], times: dict[str, Any], path: Path) -> str | None:
    """Why an index cannot be used for this content and key; None if it can."""
    try:
        head, begins = read_head(place)
        if head.get("format") != FORMAT:
            return "its index has the format of another version"
        stored = head.pop("index_digest")
        with place.open("rb") as file:
            file.seek(begins)
            damaged = stored != _digest_of_index(head, iter(lambda: file.read(BLOCK_BYTES), b""))
    except (OSError, ValueError, KeyError) as error:
        return f"its index {place} cannot be read ({strict_json.one_line(error)})"
    if damaged:
        return f"its index {place} is damaged, since it does not match its own digest"
    changed = [name for name, value in of.items() if head[name] != value]
    if "key" in changed:
        return "the recipe, its options, or the files of the base that lengths depend on have changed"
    if changed:
        return f"it has {of['bytes']:,} bytes and had {head['bytes']:,}"
    if of["bytes"] > DIGESTED_BYTES and all(head[name] == value for name, value in times.items()):
        return None
    return None if files.digest(path) == head["digest"] else "its content has changed"


def _digest_of_index(facts: dict[str, Any], numbers: Iterable[bytes | memoryview]) -> str:
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for block in numbers:
        total.update(block)
    return total.hexdigest()


def _why_none(left_out: dict[str, list[int]]) -> str:
    return "".join(f"; {len(lines)} left out: {reason}" for reason, lines in left_out.items())


class _Scanned(NamedTuple):
    entries: array[int]
    problems: list[str]
    left_out: dict[str, list[int]]
    cut: int
    bytes: int
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
                    found = measure(strict_json.loads_object(raw))
                except UserError as error:
                    problems.append(f"{path}:{line}: {error}")
                else:
                    cut += found.cut
                    if found.left_out is None:
                        entries.extend((offset, len(raw), found.positions, line, checksum_of(raw)))
                    else:
                        left_out.setdefault(found.left_out, []).append(line)
            offset += len(raw)
    return _Scanned(entries, problems, left_out, cut, offset, digest.hexdigest())
