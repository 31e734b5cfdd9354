"""A JSONL file by row number, through an index of byte offsets, lengths and checksums: memory does not grow with the file.

Beside the index is the cache of samples: of each row what training reads of it, as `sample_cache` writes it, so that no row is tokenized
while a model trains. Both are made in one pass over the file, in this process or in several (see `index_workers`).

What a run trains on is what it indexed. At each start a file of up to `DIGESTED_BYTES` is digested; a larger one counts as the indexed one
while its size and times are the same. Training reads the cache alone: each sample is checked against its checksum when it is read, and so
is a row, for whoever reads one, whatever the file's size.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import re
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune import files, strict_json
from finetune.errors import UserError

Ids = NDArray[np.int64]
SHOWN_PROBLEMS = 10
COLUMNS = 8
"""Of the index: byte offset, bytes, positions, line number and checksum of a row; offset, bytes and checksum of its cached sample."""
FORMAT = 3
"""Of the index. 1 had no checksums, 2 no cached samples."""
DIGESTED_BYTES = 2 * 2**30
"""Up to here a file is read as a whole at each start: two seconds at the 1 GB/s and more of SHA-256 on a processor of today."""
BLOCK_BYTES = 2**18
SCANNED_BYTES = 2**20
"""Of rows that are measured at once: what one process is given, and what a report of progress can be late by."""
HASHED_AT_ONCE = 2047
"""Bytes. From 2,048 on hashlib gives the interpreter away, and to get it back takes longer than to hash a sample."""
SECONDS_BETWEEN_REPORTS = 10.0
LOCK = ".index.lock"
"""In the cache's folder: of several processes that find an index stale, one makes it, and the others use that."""
HALF_WRITTEN = re.compile(rf"\..*\.(index|samples)({re.escape(files.TEMPORARY)}|{re.escape(files.TRASH)})")
"""Names of what a killed process leaves of an index or of samples."""


class Measured(NamedTuple):
    """What training makes of a row."""

    positions: int
    """As it is trained on."""
    left_out: str | None = None
    """Why it is not trained on at all."""
    cut: bool = False
    """Whether only its beginning is trained on."""
    sample: bytes = b""
    """What the cache holds of it, before it is cut."""


Measure = Callable[[dict[str, Any]], Measured]
"""Raises `UserError` for a row that must not be there."""


class DataFile:
    """A file's bytes by offset, through one descriptor that is open as long as this object.

    It is read, not mapped: a mapped file that is truncated ends the process with SIGBUS. A file that is replaced by renaming another one
    over it keeps its old content for this object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # not if it could not be opened
            os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Fewer than `size` bytes only where the file ends. Threads may read at the same time. Raises `ValueError` for a place that no file
        of this size has, as a made-up index may name one."""
        if offset < 0 or size < 0 or (size > BLOCK_BYTES and size > os.fstat(self._descriptor).st_size):
            raise ValueError(f"{size:,} bytes from byte {offset:,} on")
        parts, left = [], size
        while left and (part := os.pread(self._descriptor, left, offset + size - left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


class SamplesFile:
    """The bytes of a cache of samples by offset. It is mapped: a read is a copy, and costs no turn at the interpreter, which the training
    thread needs (a system call gives it away, and to get it back takes longer than to read a sample)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._descriptor).st_size
        self._bytes = mmap.mmap(self._descriptor, self._size, access=mmap.ACCESS_READ) if self._size else b""

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):  # not if it could not be opened
            os.close(self._descriptor)

    def announce(self, places: Iterable[Sequence[int]]) -> None:
        """Have the system begin to read these (offset, bytes), all at once. Raises `UserError` if the file is not as long as it was: a read
        past its end would end the process with SIGBUS."""
        if os.fstat(self._descriptor).st_size < self._size:
            raise UserError(f"{self.path} was truncated after it was made; {remedy(self.path)}")
        for offset, size in places:
            if isinstance(self._bytes, mmap.mmap) and 0 <= offset < self._size and 0 < size <= self._size - offset:
                begin = offset - offset % mmap.PAGESIZE
                self._bytes.madvise(mmap.MADV_WILLNEED, begin, offset + size - begin)

    def read(self, offset: int, size: int) -> bytes:
        """Raises `ValueError` for a place that is not in the file, as a made-up index may name one."""
        if not (0 <= offset <= self._size and 0 <= size <= self._size - offset):
            raise ValueError(f"{size:,} bytes from byte {offset:,} on, of {self._size:,}")
        return bytes(self._bytes[offset : offset + size])


@dataclass(frozen=True)
class Rows:
    """A JSONL file through its index."""

    path: Path
    file: DataFile
    index: Ids
    """[rows, COLUMNS]."""
    digest: str
    """SHA-256 of the file."""
    samples: SamplesFile
    """The cache: one record after the other."""
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
        except (OSError, ValueError) as error:
            raise UserError(f"this row cannot be read any more ({strict_json.one_line(error)}); {RESTORE}") from error
        if len(raw) < size:
            raise UserError(
                f"the file was truncated after it was indexed: of this row, {size:,} bytes from byte {offset:,} on, {len(raw):,} are left; "
                + RESTORE
            )
        if checksum_of(raw) != checksum:
            raise UserError(f"this row is not the one that was indexed: the file was rewritten since then; {RESTORE}")
        value: dict[str, Any] = json.loads(raw)  # `scan` has accepted these very bytes
        return value

    def announce(self, rows: Iterable[int]) -> None:
        """Have the system begin to read the samples of these rows. Raises `UserError` if the cache was truncated."""
        self.samples.announce(self.index[[*rows], 5:7].tolist())

    def sample(self, row: int) -> bytearray:
        """What the cache holds of a row. Raises `UserError` if it is not what was written there."""
        offset, size, checksum = self.index[row, 5:].tolist()
        try:
            record = self.samples.read(offset, size)
        except ValueError as error:
            raise UserError(f"its cached sample cannot be read ({error}); {remedy(self.samples.path)}") from error
        if checksum_of(record) != checksum:
            raise UserError(f"its cached sample was changed after it was made; {remedy(self.samples.path)}")
        return bytearray(record)


def remedy(samples: Path) -> str:
    """What to do about a cache of samples that is damaged."""
    return f"delete {samples} and run the same command, which makes it again and resumes from the last checkpoint"


RESTORE = (
    "nothing was trained on it. Restore the file as it was and run the same command, which resumes from the last checkpoint; "
    "to train on other data, choose another --run.dir"
)


def checksum_of(raw: bytes) -> int:
    """BLAKE2b, 64 bits, as a signed integer: what a column of the index holds."""
    total = hashlib.blake2b(digest_size=8)
    for start in range(0, len(raw), HASHED_AT_ONCE):
        total.update(raw[start : start + HASHED_AT_ONCE])
    return int.from_bytes(total.digest(), "little", signed=True)


def open_rows(path: Path, cache: Path, built: str | None = None) -> Rows:
    """Open a file whose index `build_index` has made in `cache`. Raises `UserError` if one of the two is gone by now, or if the index is
    not `built`, the one whose digest `build_index` returned."""
    place = index_path(path, cache)
    try:
        head, begins = read_head(place)
        if built is not None and head["index_digest"] != built:  # ranks with different lengths would train in different orders
            raise UserError(
                f"another process, such as `finetune plan` with other options, has just indexed {path} again in {cache}; start one after "
                "the other, or with another --run.dir"
            )
        index = np.asarray(np.memmap(place, np.int64, "r", offset=begins, shape=(head["rows"], COLUMNS)))  # whose rows are cheaper to take
        return Rows(path, DataFile(path), index, head["digest"], SamplesFile(samples_path(place)), head["left_out"], head["cut"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} or its index {place} cannot be read ({strict_json.one_line(error)}), which was there a moment ago; if this is another "
            "machine, data and run.dir must be on a disk that all of them share"
        ) from error


def index_path(path: Path, cache: Path) -> Path:
    """Two files of the same name in different folders must not share an index."""
    return cache / f"{path.stem}-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}.index"


def samples_path(index: Path) -> Path:
    """Where the cached samples of an index are."""
    return index.with_suffix(".samples")


def read_head(place: Path) -> tuple[dict[str, Any], int]:
    """The first line of an index, which says what it belongs to, and where the numbers behind it begin. Raises `ValueError` for garbage."""
    with place.open("rb") as file:
        head = strict_json.loads(file.readline())
        if not isinstance(head, dict):
            raise ValueError("its first line is no object")
        return head, file.tell()


def build_index(path: Path, cache: Path, key: str, measure: Measure, scan_all: ScanAll | None = None) -> str:
    """Measure every row once; store where those are that are trained on, with checksums and samples, and which ones are not and why.
    Returns the digest of the index.

    Kept under `cache`, not beside the data: data may be read-only, and lengths depend on the recipe. An index of the same content and `key`
    is used as it is; why another one is not is printed. `scan_all` spreads the work over processes; without it, this one does it. Raises
    `UserError` listing the bad rows by file:line.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; `python -m data_prep voice RECORDINGS --out FOLDER` makes one")
    place = index_path(path, cache)
    with files.alone(cache / LOCK):
        stat = path.stat()
        of = {"format": FORMAT, "key": key, "bytes": stat.st_size}
        times = {"modified_ns": stat.st_mtime_ns, "changed_ns": stat.st_ctime_ns}
        if place.exists():
            stale = _why_stale(place, of, times, path)
            if stale is None:
                return str(read_head(place)[0]["index_digest"])
            print(f"indexing {path} again: {stale}", file=sys.stderr, flush=True)
        for old in (place, samples_path(place)):
            files.discard(old)  # before the new ones take as much room again
            files.sweep(cache, old.name)
        return _build(path, place, {**of, **times}, scan_all or (lambda blocks: map(partial(scan, measure, path), blocks)))


def _build(path: Path, place: Path, facts: dict[str, Any], scan_all: ScanAll) -> str:
    """Write samples, then the index with their digest: a killed process leaves samples that nothing refers to."""
    files.make_private(place.parent)  # the samples say what the data says, which only its owner may be allowed to read
    whole = _Whole(path, place.parent)
    with path.open("rb") as file:
        samples = files.write_stream(samples_path(place), whole.samples(scan_all(blocks_of(file))))
    numbers = memoryview(whole.entries).cast("B")
    facts = {
        **facts, "path": str(path.resolve()), "bytes": whole.bytes, "digest": whole.digest.hexdigest(),
        "rows": len(whole.entries) // COLUMNS, "left_out": whole.left_out, "cut": whole.cut,
        "samples": {"bytes": samples.bytes, "digest": samples.digest},
    }  # fmt: skip
    digest = _digest_of_index(facts, [numbers])
    head = json.dumps({**facts, "index_digest": digest})
    padding = " " * (-(len(head.encode()) + 1) % 8)  # the numbers behind it are read in place, so they must be aligned
    files.write_bytes(place, b"".join([f"{head}{padding}\n".encode(), numbers]))
    return digest


def discard_others(cache: Path, paths: Iterable[Path]) -> None:
    """Delete indexes and samples of other data files than these, whole or half written, which a folder of a run would otherwise collect."""
    kept = {index_path(path, cache).stem for path in paths}
    with files.alone(cache / LOCK):  # what another process is writing is not left over
        for left in files.unfinished(cache):
            if HALF_WRITTEN.match(left.name):
                files.discard(left)
        for place in [*cache.glob("*.index"), *cache.glob("*.samples")]:
            if place.stem not in kept:
                files.discard(place)


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
        size, digest = head["samples"]["bytes"], head["samples"]["digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its index {place} cannot be read ({strict_json.one_line(error)})"
    if damaged:
        return f"its index {place} is damaged, since it does not match its own digest"
    changed = [name for name, value in of.items() if head.get(name) != value]
    if "key" in changed:
        return "the recipe, its options, the files of the base that lengths depend on, or the versions of the code have changed"
    if changed:
        return f"it has {of['bytes']:,} bytes and had {head.get('bytes')}"
    if not _is_whole(samples_path(place), size, digest):
        return f"its cached samples {samples_path(place)} are missing or damaged"
    if of["bytes"] > DIGESTED_BYTES and all(head.get(name) == value for name, value in times.items()):
        return None
    return None if files.digest(path) == head.get("digest") else "its content has changed"


def _is_whole(samples: Path, size: int, digest: str) -> bool:
    """Whether a cache of samples is the one that was written. Of a large one the size has to do: each sample has its checksum besides."""
    if not samples.is_file() or samples.stat().st_size != size:
        return False
    return size > DIGESTED_BYTES or files.digest(samples) == digest


def _digest_of_index(facts: dict[str, Any], numbers: Iterable[bytes | memoryview]) -> str:
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for block in numbers:
        total.update(block)
    return total.hexdigest()


def _why_none(left_out: dict[str, list[int]]) -> str:
    return "".join(f"; {len(lines)} left out: {reason}" for reason, lines in left_out.items())


class Block(NamedTuple):
    """Whole lines of a data file."""

    raw: bytes
    offset: int
    """Of its first byte in the file."""
    line: int
    """Number of its first line, from 1."""


class Scanned(NamedTuple):
    """What became of a block's rows."""

    raw: bytes
    """As in the block."""
    entries: bytes
    """int64 [rows, COLUMNS]; offsets of samples count from the first one here."""
    samples: bytes
    problems: list[str]
    left_out: dict[str, list[int]]
    cut: int


ScanAll = Callable[[Iterable[Block]], Iterator[Scanned]]
"""One result for each block, in order."""


def blocks_of(file: IO[bytes]) -> Iterator[Block]:
    """A file from its beginning to its end, about `SCANNED_BYTES` at a time."""
    offset, line = 0, 1
    while raw := file.read(SCANNED_BYTES) + file.readline():
        yield Block(raw, offset, line)
        offset += len(raw)
        line += raw.count(b"\n")


def scan(measure: Measure, path: Path, block: Block) -> Scanned:
    """Measure each row of a block. What is raised besides `UserError` is a fault of the recipe, and is given the row's place as a note."""
    entries, samples, problems = array("q"), io.BytesIO(), list[str]()
    left_out: dict[str, list[int]] = {}
    offset, cut = block.offset, 0
    for line, raw in enumerate(io.BytesIO(block.raw), start=block.line):
        if raw.strip():
            try:
                found = measure(strict_json.loads_object(raw))
            except UserError as error:
                problems.append(f"{path}:{line}: {error}")
            except Exception as error:
                error.add_note(f"while reading {path}:{line}")
                raise
            else:
                cut += found.cut
                if found.left_out is None:
                    entries.extend((offset, len(raw), found.positions, line, checksum_of(raw)))
                    entries.extend((samples.tell(), len(found.sample), checksum_of(found.sample)))
                    samples.write(found.sample)
                else:
                    left_out.setdefault(found.left_out, []).append(line)
        offset += len(raw)
    return Scanned(block.raw, entries.tobytes(), samples.getvalue(), problems, left_out, cut)


class _Whole:
    """What the blocks of a file come to, put together as they come."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.entries, self.digest, self.left_out = array("q"), hashlib.sha256(), dict[str, list[int]]()
        self.bytes = self.cut = 0
        self._path, self._cache, self._problems = path, cache, list[str]()

    def samples(self, scanned: Iterator[Scanned]) -> Iterator[bytes]:
        """The samples of each block, until a row is bad. Raises `UserError` listing the bad rows, or if there is no row at all, and, once
        the first block shows what all will take, if the disk has no room."""
        written, size, reports = 0, self._path.stat().st_size, _Reports(self._path)
        for found in scanned:
            self._add(found, written)
            if written == 0:
                needed = (len(found.samples) + len(found.entries)) * size // max(self.bytes, 1)
                files.require_space(self._cache, needed, f"the cache of the samples of {self._path}")
            written += len(found.samples)
            if not self._problems:
                yield found.samples
            reports.advance(self.bytes / max(size, self.bytes, 1))
        if self._problems:
            more = f"\n  … and {len(self._problems) - SHOWN_PROBLEMS} more" if len(self._problems) > SHOWN_PROBLEMS else ""
            raise UserError(f"{len(self._problems)} bad rows:\n  " + "\n  ".join(self._problems[:SHOWN_PROBLEMS]) + more)
        if not self.entries:
            raise UserError(f"{self._path}: no rows; there is nothing to train on{_why_none(self.left_out)}")

    def _add(self, found: Scanned, written: int) -> None:
        entries = np.frombuffer(found.entries, np.int64).reshape(-1, COLUMNS).copy()
        entries[:, 5] += written
        self.entries.frombytes(entries.tobytes())
        self.digest.update(found.raw)
        self.bytes += len(found.raw)
        self.cut += found.cut
        self._problems += found.problems
        for reason, lines in found.left_out.items():
            self.left_out.setdefault(reason, []).extend(lines)


class _Reports:
    """Prints now and then how far a pass over a file is."""

    def __init__(self, path: Path) -> None:
        self._path, self._began = path, time.monotonic()
        self._last = self._began

    def advance(self, share: float) -> None:
        now = time.monotonic()
        if share > 0 and now - self._last > SECONDS_BETWEEN_REPORTS:
            self._last = now
            left = (now - self._began) * (1 - share) / share
            print(f"indexing {self._path}: {share:.0%}, {left:,.0f} s left", file=sys.stderr, flush=True)
