"""Indexed JSONL dataset: random access to the samples of a file by an index of lengths, offsets and checksums, in constant memory.

Beside the index is the sample cache, with the tokenized sample of each row (see finetune/data/sample_serialization.py), so that no row
is tokenized during training. Both are written in one pass over the file, by one or several processes (see finetune/data/index_workers.py).

A run trains on exactly what it indexed. At each start a file of up to `DIGESTED_BYTES` is verified by its digest; a larger one by its size
and times. Training reads only the cache, and verifies each sample by its checksum.
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

from finetune.data import referenced_file_changes
from finetune.data.row_problems import RowProblem, format_row_problems
from finetune.errors import UserError
from finetune.storage import files, strict_json

Ids = NDArray[np.int64]
COLUMNS = 8
"""Columns of the index: byte offset, bytes, positions, line number and checksum of a row; offset, bytes and checksum of its sample."""
FORMAT = 4
"""Version of the index format. 1 had no checksums, 2 no cached samples, 3 no files that rows name."""
DIGESTED_BYTES = 2 * 2**30
"""Largest file that is hashed completely at each start: about two seconds with SHA-256 at 1 GB/s."""
BLOCK_BYTES = 2**18
SCANNED_BYTES = 2**20
"""Size of the blocks of rows that are indexed at a time, each by one process."""
HASHED_AT_ONCE = 2047
"""In bytes. From 2,048 on, hashlib releases the interpreter lock, and reacquiring it takes longer than hashing a sample."""
SECONDS_BETWEEN_REPORTS = 10.0
LOCK = ".index.lock"
"""Lock file in the cache's folder: of several processes that find a stale index, one rebuilds it, and the others use the result."""
HALF_WRITTEN = re.compile(rf"\..*\.(index|samples|files)({re.escape(files.TEMPORARY)}|{re.escape(files.TRASH)})")
"""Names of temporary files of indexes, samples and lists of files that a killed process may leave."""


class Measured(NamedTuple):
    """Length of a row, whether it is dropped or truncated, and its sample."""

    positions: int
    """After truncation."""
    left_out: str | None = None
    """Why the row is dropped; None if it is not."""
    cut: bool = False
    """Whether the row is truncated."""
    sample: bytes = b""
    """Record for the sample cache, before truncation."""
    files: tuple[str, ...] = ()
    """State of the files that the row names, from `referenced_file_changes.describe_files`."""


Measure = Callable[[dict[str, Any]], Measured]
"""Raises `UserError` for an invalid row."""


class SamplesFile:
    """Random access to a sample cache, by memory mapping: a read copies memory and keeps the interpreter lock, while a system call would
    release it, and reacquiring it takes longer than reading a sample."""

    def __init__(self, path: Path) -> None:
        self.path = path
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
    """Reason → line numbers of the rows that were dropped for it."""
    cut: int = 0
    """Number of truncated rows."""

    @property
    def lengths(self) -> Ids:
        return self.index[:, 2]

    def __len__(self) -> int:
        return len(self.index)

    def where(self, row: int) -> str:
        return f"{self.path}:{self.index[row, 3]}"

    def cache_of(self, _row: int) -> Path:
        """Path of the sample cache with this row."""
        return self.samples.path

    def announce(self, rows: Iterable[int]) -> None:
        """Prefetch the samples of these rows. Raises `UserError` if the cache was truncated."""
        self.samples.announce(self.index[[*rows], 5:7].tolist())

    def sample(self, row: int) -> bytearray:
        """The record of a row in the sample cache. Raises `UserError` if it does not match its checksum."""
        offset, size, checksum = self.index[row, 5:].tolist()
        try:
            record = self.samples.read(offset, size)
        except ValueError as error:
            raise UserError(f"its cached sample cannot be read ({error}); {suggest_rebuild(self.samples.path)}") from error
        if compute_checksum(record) != checksum:
            raise UserError(f"its cached sample was changed after it was written; {suggest_rebuild(self.samples.path)}")
        return bytearray(record)


def suggest_rebuild(samples: Path) -> str:
    """The next action for a damaged sample cache, for messages."""
    return f"delete {samples} and run the same command, which builds it again and resumes from the last checkpoint"


def compute_checksum(raw: bytes) -> int:
    """64-bit BLAKE2b as a signed integer, as stored in the index."""
    total = hashlib.blake2b(digest_size=8)
    for start in range(0, len(raw), HASHED_AT_ONCE):
        total.update(raw[start : start + HASHED_AT_ONCE])
    return int.from_bytes(total.digest(), "little", signed=True)


def open_rows(path: Path, cache: Path, built: str | None = None) -> Rows:
    """Open a file with the index that `build_index` has written to `cache`. Raises `UserError` if one of the two is missing, or if the
    digest of the index is not `built`, the one that `build_index` returned."""
    place = index_path(path, cache)
    try:
        head, begins = read_head(place)
        if built is not None and head["index_digest"] != built:  # ranks with different lengths would train in different orders
            raise UserError(
                f"another process, such as `finetune plan` with other options, has just indexed {path} again in {cache}; run them one "
                "after the other, or with different --run.dir"
            )
        index = np.asarray(np.memmap(place, np.int64, "r", offset=begins, shape=(head["rows"], COLUMNS)))  # whose rows are cheaper to take
        return Rows(path, index, head["digest"], SamplesFile(samples_path(place)), head["left_out"], head["cut"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} or its index {place} cannot be read ({strict_json.one_line(error)}), though rank 0 has just read it; with several "
            "machines, data and run.dir must be on a disk that all of them share"
        ) from error


def index_path(path: Path, cache: Path) -> Path:
    """Path of the index of a data file; unique for files of the same name in different folders."""
    return cache / f"{path.stem}-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}.index"


def samples_path(index: Path) -> Path:
    """Path of the sample cache of an index."""
    return index.with_suffix(".samples")


def files_path(index: Path) -> Path:
    """Path of the list of files that the rows of an index name; it exists only if there are any."""
    return index.with_suffix(".files")


def read_head(place: Path) -> tuple[dict[str, Any], int]:
    """The JSON header of an index, and the offset of the numbers after it. Raises `ValueError` for an invalid header."""
    with place.open("rb") as file:
        head = strict_json.loads(file.readline())
        if not isinstance(head, dict):
            raise ValueError("its first line is not a JSON object")
        return head, file.tell()


def build_index(path: Path, cache: Path, key: str, measure: Measure, scan_all: ScanAll | None = None) -> str:
    """Read every row once and write index and sample cache to `cache`; returns the digest of the index.

    They are not stored beside the data, which may be read-only, and lengths depend on the recipe. An index of the same content and `key` is
    reused; otherwise the reason is printed. `scan_all` distributes the work over processes; without it, this process does it. Raises
    `UserError` listing the invalid rows by file:line.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; give data.train and data.val the path of a JSONL file")
    place = index_path(path, cache)
    with files.hold_lock(cache / LOCK):
        stat = path.stat()
        of = {"format": FORMAT, "key": key, "bytes": stat.st_size}
        times = {"modified_ns": stat.st_mtime_ns, "changed_ns": stat.st_ctime_ns}
        if place.exists():
            stale = _explain_staleness(place, of, times, path)
            if stale is None:
                return str(read_head(place)[0]["index_digest"])
            print(f"indexing {path} again: {stale}", file=sys.stderr, flush=True)
        for old in (place, samples_path(place), files_path(place)):
            files.discard(old)  # first, to free space for the new ones
            files.remove_unfinished(cache, old.name)
        return _build(path, place, {**of, **times}, scan_all or (lambda blocks: map(partial(scan_block, measure, path), blocks)))


def _build(path: Path, place: Path, facts: dict[str, Any], scan_all: ScanAll) -> str:
    """Write the samples first, then the index with their digest: if the process is killed, no index refers to incomplete samples."""
    files.make_private(place.parent)  # the samples contain the data, which other users may not be allowed to read
    whole = _Whole(path, place.parent)
    with path.open("rb") as file:
        samples = files.write_stream(samples_path(place), whole.samples(scan_all(blocks_of(file))))
    if whole.files:
        files.write_bytes(files_path(place), bytes(whole.files))
    numbers = memoryview(whole.entries).cast("B")
    facts = {
        **facts, "path": str(path.resolve()), "bytes": whole.bytes, "digest": whole.digest.hexdigest(),
        "rows": len(whole.entries) // COLUMNS, "left_out": whole.left_out, "cut": whole.cut,
        "samples": {"bytes": samples.bytes, "digest": samples.digest}, "files": hashlib.sha256(whole.files).hexdigest(),
    }  # fmt: skip
    digest = _digest_of_index(facts, [numbers])
    head = json.dumps({**facts, "index_digest": digest})
    padding = " " * (-(len(head.encode()) + 1) % 8)  # aligns the numbers after it, which are memory-mapped
    files.write_bytes(place, b"".join([f"{head}{padding}\n".encode(), numbers]))
    return digest


def discard_other_indexes(cache: Path, paths: Iterable[Path]) -> None:
    """Delete indexes and samples of data files other than `paths`, and partly written ones, which would accumulate in a run's folder."""
    kept = {index_path(path, cache).stem for path in paths}
    with files.hold_lock(cache / LOCK):  # otherwise files that another process is writing would be deleted
        for left in files.list_unfinished(cache):
            if HALF_WRITTEN.match(left.name):
                files.discard(left)
        for place in [*cache.glob("*.index"), *cache.glob("*.samples"), *cache.glob("*.files")]:
            if place.stem not in kept:
                files.discard(place)


def _explain_staleness(place: Path, of: dict[str, Any], times: dict[str, Any], path: Path) -> str | None:
    """Why an index cannot be reused for this content and key; None if it can."""
    try:
        head, begins = read_head(place)
        if head.get("format") != FORMAT:
            return "its index has the format of another program version"
        stored = head.pop("index_digest")
        with place.open("rb") as file:
            file.seek(begins)
            damaged = stored != _digest_of_index(head, iter(lambda: file.read(BLOCK_BYTES), b""))
        size, digest = head["samples"]["bytes"], head["samples"]["digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its index {place} cannot be read ({strict_json.one_line(error)})"
    if damaged:
        return f"its index {place} is damaged: it does not match its digest"
    changed = [name for name, value in of.items() if head.get(name) != value]
    if "key" in changed:
        return "the recipe, its options, the files of the base that lengths depend on, or the versions of the code have changed"
    if changed:
        return f"it has {of['bytes']:,} bytes and had {head.get('bytes')}"
    if not _is_whole(samples_path(place), size, digest):
        return f"its cached samples {samples_path(place)} are missing or damaged"
    if (change := _find_changed_file(place, head, path.absolute().parent)) is not None:
        return change
    if of["bytes"] > DIGESTED_BYTES and all(head.get(name) == value for name, value in times.items()):
        return None
    return None if files.digest(path) == head.get("digest") else "its content has changed"


def _find_changed_file(place: Path, head: dict[str, Any], folder: Path) -> str | None:
    """Which file that a row names is not as it was when the rows were read; None if all are."""
    try:
        listed = files_path(place).read_bytes() if files_path(place).exists() else b""
        if hashlib.sha256(listed).hexdigest() != head.get("files"):
            return f"its list of files {files_path(place)} is missing or damaged"
        return referenced_file_changes.find_change(listed.decode().splitlines(), folder)
    except (OSError, ValueError) as error:
        return f"its list of files {files_path(place)} cannot be read ({strict_json.one_line(error)})"


def _is_whole(samples: Path, size: int, digest: str) -> bool:
    """Whether a sample cache is intact. A large one is checked by size only, since each sample has a checksum, too."""
    if not samples.is_file() or samples.stat().st_size != size:
        return False
    return size > DIGESTED_BYTES or files.digest(samples) == digest


def _digest_of_index(facts: dict[str, Any], numbers: Iterable[bytes | memoryview]) -> str:
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for block in numbers:
        total.update(block)
    return total.hexdigest()


def _describe_dropped(left_out: dict[str, list[int]]) -> str:
    return "".join(f"; {len(lines)} dropped: {reason}" for reason, lines in left_out.items())


class Block(NamedTuple):
    """Complete lines of a data file."""

    raw: bytes
    offset: int
    """Offset of its first byte in the file."""
    line: int
    """Number of its first line, from 1."""


class Scanned(NamedTuple):
    """Index entries and samples of a block's rows."""

    raw: bytes
    """As in the block."""
    entries: bytes
    """int64 [rows, COLUMNS]; offsets of samples are relative to the first one of this block."""
    samples: bytes
    problems: list[RowProblem]
    left_out: dict[str, list[int]]
    cut: int
    files: bytes = b""
    """State of the files that these rows name, one line each."""


ScanAll = Callable[[Iterable[Block]], Iterator[Scanned]]
"""One result for each block, in order."""


def blocks_of(file: IO[bytes]) -> Iterator[Block]:
    """The blocks of a file, of about `SCANNED_BYTES` each."""
    offset, line = 0, 1
    while raw := file.read(SCANNED_BYTES) + file.readline():
        yield Block(raw, offset, line)
        offset += len(raw)
        line += raw.count(b"\n")


def scan_block(measure: Measure, path: Path, block: Block) -> Scanned:
    """Measure each row of a block. Exceptions other than `UserError` are bugs of the recipe, and get a note with the row's place."""
    entries, samples, problems, named = array("q"), io.BytesIO(), list[RowProblem](), list[str]()
    left_out: dict[str, list[int]] = {}
    offset, cut = block.offset, 0
    for line, raw in enumerate(io.BytesIO(block.raw), start=block.line):
        if raw.strip():
            try:
                found = measure(strict_json.loads_object(raw))
            except UserError as error:
                problems.append(RowProblem(line, str(error)))
            except Exception as error:
                error.add_note(f"while reading {path}:{line}")
                raise
            else:
                cut += found.cut
                named += found.files
                if found.left_out is None:
                    entries.extend((offset, len(raw), found.positions, line, compute_checksum(raw)))
                    entries.extend((samples.tell(), len(found.sample), compute_checksum(found.sample)))
                    samples.write(found.sample)
                else:
                    left_out.setdefault(found.left_out, []).append(line)
        offset += len(raw)
    return Scanned(block.raw, entries.tobytes(), samples.getvalue(), problems, left_out, cut, "".join(f"{one}\n" for one in named).encode())


class _Whole:
    """Collects the results of a file's blocks, in order."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.entries, self.digest, self.left_out = array("q"), hashlib.sha256(), dict[str, list[int]]()
        self.files, self.bytes, self.cut = bytearray(), 0, 0
        self._path, self._cache, self._problems = path, cache, list[RowProblem]()

    def samples(self, scanned: Iterator[Scanned]) -> Iterator[bytes]:
        """The samples of each block, up to the first invalid row. Raises `UserError` listing invalid rows, if there are no rows, and if the
        disk has no room for the cache, as estimated from the first block."""
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
            rows = len(self.entries) // COLUMNS + sum(map(len, self.left_out.values())) + len(self._problems)
            raise UserError(format_row_problems(self._path, self._problems, rows))
        if not self.entries:
            raise UserError(f"{self._path}: no rows; there is nothing to train on{_describe_dropped(self.left_out)}")

    def _add(self, found: Scanned, written: int) -> None:
        entries = np.frombuffer(found.entries, np.int64).reshape(-1, COLUMNS).copy()
        entries[:, 5] += written
        self.entries.frombytes(entries.tobytes())
        self.digest.update(found.raw)
        self.bytes += len(found.raw)
        self.cut += found.cut
        self._problems += found.problems
        self.files += found.files
        for reason, lines in found.left_out.items():
            self.left_out.setdefault(reason, []).extend(lines)


class _Reports:
    """Prints the progress of a pass over a file every `SECONDS_BETWEEN_REPORTS`."""

    def __init__(self, path: Path) -> None:
        self._path, self._began = path, time.monotonic()
        self._last = self._began

    def advance(self, share: float) -> None:
        now = time.monotonic()
        if share > 0 and now - self._last > SECONDS_BETWEEN_REPORTS:
            self._last = now
            left = (now - self._began) * (1 - share) / share
            print(f"indexing {self._path}: {share:.0%}, {left:,.0f} s left", file=sys.stderr, flush=True)
