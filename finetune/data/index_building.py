"""Builds the index and the sample cache of a JSONL file in one pass over its rows, and decides when they can be reused.

The index has the offset, length and checksum of each row; the sample cache beside it has the tokenized sample (see
finetune/data/sample_serialization.py), so that no row is tokenized during training. finetune/data/cached_samples.py reads both. The pass is
made by one or several processes (see finetune/data/index_workers.py).

A run trains on exactly what it indexed. At each start a file of up to `DIGESTED_BYTES` is verified by its digest; a larger one by its size
and times.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from overtone.finetune.data import referenced_file_changes
from overtone.finetune.data.cached_samples import (
    COLUMNS,
    REFERENCE,
    REFERENCE_PARTS,
    compute_checksum,
    files_path,
    index_path,
    read_head,
    samples_path,
)
from overtone.finetune.data.row_problems import RowProblem, format_row_problems
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.terminal import print_diagnostic

FORMAT = 5
"""Version of the index format. 1 had no checksums, 2 no cached samples, 3 no files that rows name, 4 no counts of what is not used."""
DIGESTED_BYTES = 2 * 2**30
"""Largest file that is hashed completely at each start: about two seconds with SHA-256 at 1 GB/s."""
LARGEST_LIST = 2**30
"""Bytes of the list of the files that all rows name, 1 GiB: ten million names."""
BLOCK_BYTES = 2**18
SCANNED_BYTES = 2**20
"""Size of the blocks of rows that are indexed at a time, each by one process."""
SECONDS_BETWEEN_REPORTS = 10.0
LOCK = ".index.lock"
"""Lock file in the cache's folder: of several processes that find a stale index, one rebuilds it, and the others use the result."""
HALF_WRITTEN = re.compile(rf"\..*\.(index|samples|files|reference|parts)({re.escape(files.TEMPORARY)}|{re.escape(files.TRASH)})")
"""Names of temporary files of indexes, samples and lists of files that a killed process may leave."""


class Measured(NamedTuple):
    """Length of a row, whether it is dropped or truncated, and its sample."""

    positions: int
    """Number of positions after truncation."""
    left_out: str | None = None
    """The reason why the row is dropped; None if it is not."""
    cut: bool = False
    """True if the row is truncated."""
    sample: bytes = b""
    """Record for the sample cache, before truncation."""
    files: tuple[str, ...] = ()
    """State of the files that the row names, from `referenced_file_changes.describe_files`."""
    unused: tuple[str, ...] = ()
    """Unused parts of the row, from `Recipe.list_unused`."""


Measure = Callable[[dict[str, Any]], Measured]
"""Measures a row; raises `UserError` for an invalid one."""


def build_index(path: Path, cache: Path, key: str, measure: Measure, scan_all: ScanAll | None = None) -> str:
    """Read every row once and write index and sample cache to `cache`; returns the digest of the index.

    The index is not stored beside the data, because that may be read-only, and lengths depend on the recipe. An index of the same content
    and `key` is reused; otherwise the reason is printed. `scan_all` distributes the work over processes; without it, this process does it.
    Raises `UserError` listing the invalid rows by file:line.
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
            print_diagnostic(f"indexing {path} again: {stale}")
        for old in (place, samples_path(place), files_path(place)):
            files.discard(old)  # first, to free space for the new ones
            files.remove_unfinished(cache, old.name)
        return _build(path, place, {**of, **times}, scan_all or (lambda blocks: map(partial(scan_block, measure, path), blocks)))


def _build(path: Path, place: Path, facts: dict[str, Any], scan_all: ScanAll) -> str:
    """Write the samples first, then the index with their digest: if the process is killed, no index refers to incomplete samples."""
    files.make_private(place.parent)  # the samples contain the data, which other users may not be allowed to read
    whole = _Whole(path, place.parent)
    with input_files.open_file(path) as file:
        samples = files.write_stream(samples_path(place), whole.samples(scan_all(blocks_of(file, path))))
    if whole.files:
        files.write_bytes(files_path(place), bytes(whole.files))
    numbers = memoryview(whole.entries).cast("B")
    facts = {
        **facts, "path": str(path.resolve()), "bytes": whole.bytes, "digest": whole.digest.hexdigest(),
        "rows": len(whole.entries) // COLUMNS, "left_out": whole.left_out, "cut": whole.cut,
        "unused": dict(whole.unused.most_common()),
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
        for ending in (".index", ".samples", ".files", REFERENCE, REFERENCE_PARTS):
            for place in cache.glob(f"*{ending}"):
                if place.stem not in kept:
                    files.discard(place)


def _explain_staleness(place: Path, of: dict[str, Any], times: dict[str, Any], path: Path) -> str | None:
    """Return why an index cannot be reused for this content and key; None if it can."""
    try:
        head, begins = read_head(place)
        if head.get("format") != FORMAT:
            return "its index has the format of another program version"
        stored = head.pop("index_digest")
        with input_files.open_file(place) as file:
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
    samples = samples_path(place)
    is_sized = samples.is_file() and samples.stat().st_size == size
    # A large file is checked by its size only, since each sample has a checksum, too.
    if not is_sized or (size <= DIGESTED_BYTES and files.digest(samples) != digest):
        return f"its cached samples {samples} are missing or damaged"
    if (change := _find_changed_file(place, head, path.absolute().parent)) is not None:
        return change
    if of["bytes"] > DIGESTED_BYTES and all(head.get(name) == value for name, value in times.items()):
        return None
    return None if files.digest(path) == head.get("digest") else "its content has changed"


def _find_changed_file(place: Path, head: dict[str, Any], folder: Path) -> str | None:
    """Return which file that a row names is not as it was when the rows were read; None if all are."""
    try:
        listed = input_files.read_bytes(files_path(place), LARGEST_LIST) if files_path(place).exists() else b""
        if hashlib.sha256(listed).hexdigest() != head.get("files"):
            return f"its list of files {files_path(place)} is missing or damaged"
        return referenced_file_changes.find_change(listed.decode().split("\n")[:-1], folder)
    except (OSError, ValueError) as error:
        return f"its list of files {files_path(place)} cannot be read ({strict_json.one_line(error)})"


def _digest_of_index(facts: dict[str, Any], numbers: Iterable[bytes | memoryview]) -> str:
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for block in numbers:
        total.update(block)
    return total.hexdigest()


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
    """Lines of the block."""
    entries: bytes
    """int64 [rows, COLUMNS]; offsets of samples are relative to the first one of this block."""
    samples: bytes
    problems: list[RowProblem]
    left_out: dict[str, list[int]]
    cut: int
    files: bytes
    """State of the files that these rows name, one line each."""
    unused: Counter[str]
    """Unused part → number of rows that have it."""


ScanAll = Callable[[Iterable[Block]], Iterator[Scanned]]
"""One result for each block, in order."""


def blocks_of(file: IO[bytes], path: Path) -> Iterator[Block]:
    """Yield the blocks of a file, of about `SCANNED_BYTES` each. Raises `UserError` with the line's number for a line that is too long."""
    offset, line = 0, 1
    while begin := file.read(SCANNED_BYTES):
        raw = begin + input_files.read_line(file, path, line + begin.count(b"\n"))
        yield Block(raw, offset, line)
        offset += len(raw)
        line += raw.count(b"\n")


def scan_block(measure: Measure, path: Path, block: Block) -> Scanned:
    """Measure each row of a block. Exceptions other than `UserError` are bugs of the recipe, and get a note with the row's place."""
    entries, samples, problems, named = array("q"), io.BytesIO(), list[RowProblem](), list[str]()
    left_out, unused = dict[str, list[int]](), Counter[str]()
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
                unused.update(found.unused)
                if found.left_out is None:
                    entries.extend((offset, len(raw), found.positions, line, compute_checksum(raw)))
                    entries.extend((samples.tell(), len(found.sample), compute_checksum(found.sample)))
                    samples.write(found.sample)
                else:
                    left_out.setdefault(found.left_out, []).append(line)
        offset += len(raw)
    listed = "".join(f"{one}\n" for one in named).encode()
    return Scanned(
        raw=block.raw,
        entries=entries.tobytes(),
        samples=samples.getvalue(),
        problems=problems,
        left_out=left_out,
        cut=cut,
        files=listed,
        unused=unused,
    )


class _Whole:
    """Collects the results of a file's blocks, in order."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.entries, self.digest, self.left_out = array("q"), hashlib.sha256(), dict[str, list[int]]()
        self.files, self.bytes, self.cut, self.unused = bytearray(), 0, 0, Counter[str]()
        self._path, self._cache, self._problems = path, cache, list[RowProblem]()

    def samples(self, scanned: Iterator[Scanned]) -> Iterator[bytes]:
        """Yield the samples of each block, up to the first invalid row. Raises `UserError` listing invalid rows, if there are no rows, and
        if the disk has no room for the cache, as estimated from the first block."""
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
            dropped = "".join(f"; {len(lines)} dropped: {reason}" for reason, lines in self.left_out.items())
            raise UserError(f"{self._path}: no rows; there is nothing to train on{dropped}")

    def _add(self, found: Scanned, written: int) -> None:
        entries = np.frombuffer(found.entries, np.int64).reshape(-1, COLUMNS).copy()
        entries[:, 5] += written
        self.entries.frombytes(entries.tobytes())
        self.digest.update(found.raw)
        self.bytes += len(found.raw)
        self.cut += found.cut
        self._problems += found.problems
        self.files += found.files
        self.unused += found.unused
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
            print_diagnostic(f"indexing {self._path}: {share:.0%}, {left:,.0f} s left")
