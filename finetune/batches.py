"""What is trained on, in which order: computed from (seed, epoch, position), never stored.

The order of an epoch is a keyed permutation; it is cut into windows, a window is bucketed by length into micro-batches of at most
`micro_tokens` positions, and an optimizer step is the next run of micro-batches that reaches `global_batch_tokens`. None of this depends
on the world: ranks take a step's micro-batches in turn. So a place is three integers, found at once, on any number of ranks.
"""

from __future__ import annotations

import hashlib
import io
import json
import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune import files
from finetune.config import Config
from finetune.errors import UserError
from finetune.recipe import Batch, Recipe, Sample

Ids = NDArray[np.int64]
SHOWN_PROBLEMS = 10


@dataclass(frozen=True)
class Place:
    """Where in the data a run stands: the next micro-batch to train on."""

    epoch: int = 0
    window: int = 0
    micro: int = 0


@dataclass(frozen=True)
class MicroBatch:
    ids: tuple[int, ...]
    """Row numbers in the data file."""
    tokens: int
    """Positions without padding."""
    key: int
    """Seed of everything random while it is trained on."""


@dataclass(frozen=True)
class Step:
    """One optimizer step's micro-batches, for the whole world."""

    micros: tuple[MicroBatch, ...]
    after: Place
    """Where the next step starts."""

    @property
    def tokens(self) -> int:
        return sum(micro.tokens for micro in self.micros)


@dataclass(frozen=True)
class Order:
    """All that decides the order of training; part of each checkpoint's state, since another order would repeat or skip rows."""

    seed: int
    window: int
    micro_tokens: int
    global_batch_tokens: int

    @classmethod
    def of(cls, config: Config) -> Order:
        return cls(config.run.seed, config.data.window, config.train.micro_tokens, config.train.global_batch_tokens)

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def permute(positions: Ids, size: int, key: int) -> Ids:
    """Image of each position under a keyed permutation of range(size): a four-round Feistel network with cycle walking.

    Nothing is stored and any position costs the same (Luby & Rackoff 1988; walking: Black & Rogaway 2002).
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    result = _feistel(positions.astype(np.uint64), half, key)
    while (outside := result >= size).any():
        result[outside] = _feistel(result[outside], half, key)
    return result.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half: int, key: int) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for turn in range(4):
        left, right = right, left ^ (_mix(right + np.uint64(keyed(key, turn))) & mask)
    return (left << shift) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014): every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def keyed(*parts: int) -> int:
    """A 63-bit key from integers."""
    return int.from_bytes(hashlib.sha256(json.dumps(parts).encode()).digest()[:8], "big") >> 1


def micro_batches(order: Order, lengths: Ids, epoch: int, window: int) -> list[MicroBatch]:
    """The micro-batches of one window, in the order of training."""
    start = window * order.window
    positions = np.arange(start, min(start + order.window, len(lengths)))
    ids = permute(positions, len(lengths), keyed(order.seed, epoch))
    by_length = ids[np.argsort(lengths[ids], kind="stable")]
    groups = fill(by_length, lengths[by_length], order.micro_tokens)
    # Without this shuffle a window would be trained from its shortest samples to its longest.
    turns = permute(np.arange(len(groups)), len(groups), keyed(order.seed, epoch, window))
    return [
        MicroBatch(tuple(int(row) for row in groups[turn]), int(lengths[groups[turn]].sum()), keyed(order.seed, epoch, window, place))
        for place, turn in enumerate(turns)
    ]


def fill(ids: Ids, lengths: Ids, largest: int) -> list[Ids]:
    """Cut rows of ascending length into runs whose padded size (longest × rows) is at most `largest`. A longer row stands alone."""
    groups, start = [], 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or int(lengths[end]) * (end + 1 - start) > largest:
            groups.append(ids[start:end])
            start = end
    return groups


def steps(order: Order, lengths: Ids, place: Place, epochs: int | None) -> Iterator[Step]:
    """Optimizer steps from `place` on; without `epochs` it never ends. A step does not reach over the end of an epoch."""
    windows = -(-len(lengths) // order.window)
    while epochs is None or place.epoch < epochs:
        taken: list[MicroBatch] = []
        tokens = 0
        for window in range(place.window, windows):
            micros = micro_batches(order, lengths, place.epoch, window)
            for number in range(place.micro if window == place.window else 0, len(micros)):
                taken.append(micros[number])
                tokens += micros[number].tokens
                if tokens >= order.global_batch_tokens:
                    place = Place(place.epoch, window, number + 1)
                    yield Step(tuple(taken), place)
                    taken, tokens = [], 0
        place = Place(place.epoch + 1)
        if taken:
            yield Step(tuple(taken), place)


def count_steps(order: Order, lengths: Ids, epochs: int) -> int:
    return sum(1 for _ in steps(order, lengths, Place(), epochs))


@dataclass(frozen=True)
class Rows:
    """A JSONL file through its index: rows are read by number, and memory does not grow with the file."""

    path: Path
    text: mmap.mmap | bytes
    index: Ids
    """[rows, 4]: byte offset, bytes, positions, line number."""
    digest: str
    """SHA-256 of the file."""

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
    head = json.loads(_index_path(path, cache, "json").read_text())
    index = np.load(_index_path(path, cache, "npy"), mmap_mode="r", allow_pickle=False)
    with path.open("rb") as file:
        return Rows(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), index, head["digest"])


def _index_path(path: Path, cache: Path, kind: str) -> Path:
    """Two files of the same name in different folders must not share an index."""
    return cache / f"{path.stem}-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}.index.{kind}"


def build_index(path: Path, cache: Path, key: str, measure: Callable[[dict[str, Any]], int]) -> None:
    """Read every row once with `measure` (row → positions; `UserError` if it is bad) and store offsets, lengths and line numbers.

    Kept under `cache`, not beside the data: data may be read-only, and lengths depend on the recipe. An index of the same file and `key`
    is used as it is. Raises `UserError` listing the bad rows by file:line.
    """
    head_path = _index_path(path, cache, "json")
    if not path.is_file():
        raise UserError(f"{path}: no such file; `python -m data_prep voice RECORDINGS --out FOLDER` makes one")
    stat = path.stat()
    head = {"key": key, "path": str(path.resolve()), "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}
    if head_path.is_file() and head.items() <= json.loads(head_path.read_text()).items():
        return
    entries, problems = _scan(path, measure)
    if problems:
        more = f"\n  … and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        raise UserError(f"{len(problems)} bad rows:\n  " + "\n  ".join(problems[:SHOWN_PROBLEMS]) + more)
    if not entries:
        raise UserError(f"{path}: no rows; there is nothing to train on")
    buffer = io.BytesIO()
    np.save(buffer, np.array(entries, dtype=np.int64), allow_pickle=False)
    files.write_bytes(_index_path(path, cache, "npy"), buffer.getbuffer())
    files.write_json(head_path, {**head, "digest": files.digest(path), "rows": len(entries)})


def _scan(path: Path, measure: Callable[[dict[str, Any]], int]) -> tuple[list[tuple[int, int, int, int]], list[str]]:
    entries: list[tuple[int, int, int, int]] = []
    problems: list[str] = []
    offset = 0
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            if raw.strip():
                try:
                    entries.append((offset, len(raw), measure(parse_row(raw)), line))
                except UserError as error:
                    problems.append(f"{path}:{line}: {error}")
            offset += len(raw)
    return entries, problems


def parse_row(raw: bytes) -> dict[str, Any]:
    """One line of JSONL. Raises `UserError` saying what is wrong with it."""
    try:
        row = json.loads(raw)
    except ValueError as error:
        raise UserError(f"not a line of JSON ({error})") from None
    if not isinstance(row, dict):
        raise UserError(f"expected an object in braces, found {type(row).__name__}")
    return row


def check_lengths(rows: Rows, micro_tokens: int) -> None:
    """Refuse rows that no micro-batch can hold, naming the longest."""
    longest = int(np.argmax(rows.lengths))
    if rows.lengths[longest] > micro_tokens:
        raise UserError(
            f"{rows.where(longest)}: {rows.lengths[longest]} positions do not fit train.micro_tokens: {micro_tokens}; "
            "raise it, or prepare shorter clips"
        )


@dataclass(frozen=True)
class Turn:
    """What one rank does in one round of a step."""

    micro: MicroBatch
    batch: Batch
    counts: bool
    """False for a filler: a rank left over runs a small batch with weight 0, because collectives need everyone."""


class Loader:
    """Turns steps into this rank's batches, one step ahead of the training, on a thread that it owns."""

    def __init__(self, rows: Rows, recipe: Recipe, processor: Any, rank: int, size: int) -> None:
        self._rows, self._recipe, self._processor = rows, recipe, processor
        self._rank, self._size = rank, size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")

    def over(self, todo: Iterator[Step]) -> Iterator[tuple[Step, list[Turn]]]:
        ahead = None
        for step in todo:
            following = step, self._thread.submit(self.turns, step.micros)
            if ahead is not None:
                yield ahead[0], ahead[1].result()
            ahead = following
        if ahead is not None:
            yield ahead[0], ahead[1].result()

    def turns(self, micros: tuple[MicroBatch, ...]) -> list[Turn]:
        """This rank's share, as many turns as every other rank has."""
        shortest = min(micros, key=lambda micro: (micro.tokens, micro.ids))
        filler = MicroBatch(shortest.ids[:1], 0, shortest.key)
        rounds = range(self._rank, -(-len(micros) // self._size) * self._size, self._size)
        chosen = [(micros[number], True) if number < len(micros) else (filler, False) for number in rounds]
        return [Turn(micro, self._recipe.collate([self.sample(row) for row in micro.ids]), counts) for micro, counts in chosen]

    def sample(self, row: int) -> Sample:
        try:
            return self._recipe.read(self._rows.read(row), self._processor)
        except UserError as error:
            raise UserError(f"{self._rows.where(row)}: {error}") from None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)  # what fails must be told now, not when a slow disk has answered
