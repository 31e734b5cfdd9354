"""A mixture of training files: how many samples each file contributes, which rows these are, and the files as one dataset.

Time in a mixture is counted in samples from the start of the run. After T of them, a source with the share p has contributed exactly
⌊T·p + 1/2⌋ samples, whatever the number of ranks and however often the run was resumed, as this is computed, not drawn. They are the first
ones of an endless sequence of passes over the source, each a keyed permutation of its rows. So every row of a source is trained equally
often: the numbers differ by at most one at any time.

An epoch has as many samples as the files have rows (each source's part rounded as above). With weights that are proportional to the numbers
of rows, it contains each row once; otherwise some sources are repeated and others cut in it, and the next epoch continues where they were
cut. A source is identified by its content: neither its path nor its place in `data.mix` changes the order.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from pydantic import JsonValue

from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.data.cached_samples import Ids, RowPredictions, Rows
from overtone.finetune.data.keyed_permutation import derive_key, permute
from overtone.finetune.errors import UserError, format_count
from overtone.finetune.recipe import POSITIONS


@dataclass(frozen=True)
class MixedLengths:
    """The lengths of the rows of several sources, which are numbered through, and the samples that each source contributes."""

    parts: tuple[Ids, ...]
    """Lengths of each source's rows, in positions."""
    shares: tuple[Fraction, ...]
    """Shares of the samples; their sum is 1."""
    keys: tuple[int, ...]
    """A number for each source, which determines the order of its rows."""

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Number of each source's first row."""
        return (0, *accumulate(map(len, self.parts)))[:-1]

    def __len__(self) -> int:
        """Number of samples of an epoch: that of all rows."""
        return sum(map(len, self.parts))

    def __getitem__(self, row: int) -> int:
        source = self.source_of(row)
        return int(self.parts[source][row - self.starts[source]])

    def source_of(self, row: int) -> int:
        return bisect_right(self.starts, row) - 1

    def of(self, source: int, rows: Ids) -> Ids:
        """Return the lengths of rows of one source."""
        return self.parts[source][rows - self.starts[source]]

    def sum(self) -> int:
        """Return the number of positions of all rows."""
        return sum(int(part.sum()) for part in self.parts)

    def max(self) -> int:
        return max(int(part.max()) for part in self.parts)

    def count(self, source: int, samples: int) -> int:
        """Return how many of the first `samples` samples of a run are from this source."""
        share = self.shares[source]
        return (2 * samples * share.numerator + share.denominator) // (2 * share.denominator)

    def draw(self, source: int, start: int, end: int, seed: int) -> Ids:
        """Return the rows that the source contributes to the samples from `start` to `end` of a run."""
        numbers = np.arange(self.count(source, start), self.count(source, end))
        size, rows = len(self.parts[source]), np.empty(len(numbers), np.int64)
        passes, places = np.divmod(numbers, size)
        for number in np.unique(passes).tolist():
            own = passes == number
            rows[own] = permute(places[own], size, derive_key(seed, self.keys[source], number))
        return rows + self.starts[source]


@dataclass(frozen=True)
class MixedRows:
    """Several JSONL files as one dataset; the same methods as in `Rows`."""

    sources: tuple[Rows, ...]
    """By digest, so that the order in `data.mix` does not matter."""
    names: tuple[str, ...]
    shares: tuple[Fraction, ...]
    lengths: MixedLengths = field(init=False)

    def __post_init__(self) -> None:
        keys = tuple(int(rows.digest[:15], 16) for rows in self.sources)
        object.__setattr__(self, "lengths", MixedLengths(tuple(rows.lengths for rows in self.sources), self.shares, keys))

    @classmethod
    def mix(cls, opened: Sequence[Rows], names: Sequence[str], weights: Sequence[float], key: str = "data.mix") -> MixedRows:
        """Return the mixture of these files. Raises `UserError`, in the name of the config `key`, for two files with the same content."""
        shares = compute_shares(weights)
        order = sorted(range(len(opened)), key=lambda number: opened[number].digest)
        for one, other in pairwise(order):
            if opened[one].digest == opened[other].digest:
                raise UserError(describe_equal_files(opened[one].path, opened[other].path, key))
        return cls(
            sources=tuple(opened[number] for number in order),
            names=tuple(names[number] for number in order),
            shares=tuple(shares[number] for number in order),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def digest(self) -> str:
        """SHA-256 over the sources and their shares."""
        return hashlib.sha256(json.dumps([(rows.digest, str(share)) for rows, share in self._shared()]).encode()).hexdigest()

    def _shared(self) -> Iterator[tuple[Rows, Fraction]]:
        return zip(self.sources, self.shares, strict=True)

    def _locate(self, row: int) -> tuple[Rows, int]:
        source = self.lengths.source_of(row)
        return self.sources[source], row - self.lengths.starts[source]

    def where(self, row: int) -> str:
        rows, own = self._locate(row)
        return rows.where(own)

    def longest_beside(self, row: int) -> int:
        """Return the positions of the longest row in the file of this row."""
        rows, own = self._locate(row)
        return rows.longest_beside(own)

    def list_not_longer(self, row: int) -> Ids:
        """Return the rows of the file of this row that are not longer, itself included [rows]."""
        rows, own = self._locate(row)
        return rows.list_not_longer(own) + (row - own)

    def previous(self, row: int) -> int:
        """Number of the row before this one in its file; the last row of a file precedes its first."""
        rows, own = self._locate(row)
        return row - own + rows.previous(own)

    def predict(self, row: int) -> RowPredictions | None:
        """Return what the frozen base predicts for a row; None if that is computed in each step."""
        rows, own = self._locate(row)
        return rows.predict(own)

    def cache_of(self, row: int) -> Path:
        return self._locate(row)[0].samples.path

    def announce(self, rows: Iterable[int]) -> None:
        """Prefetch the samples of these rows. Raises `UserError` if a cache was truncated."""
        wanted: dict[int, list[int]] = {}
        for row in rows:
            source = self.lengths.source_of(row)
            wanted.setdefault(source, []).append(row - self.lengths.starts[source])
        for source, own in wanted.items():
            self.sources[source].announce(own)

    def sample(self, row: int) -> bytearray:
        source, own = self._locate(row)
        return source.sample(own)

    def identify(self) -> list[dict[str, JsonValue]]:
        """Return what a checkpoint records of each source."""
        return [
            {"name": name, "share": str(share), "digest": rows.digest, "rows": len(rows), "positions": int(rows.lengths.sum())}
            for name, (rows, share) in zip(self.names, self._shared(), strict=True)
        ]

    def describe(self, epochs: int | None, unit: str = POSITIONS) -> Iterator[str]:
        """Yield a line for each source, the largest share first. `epochs`: None if the run's length is given in steps. `unit`:
        `Recipe.unit`."""
        for name, share, rows in sorted(zip(self.names, self.shares, self.sources, strict=True), key=lambda each: (-each[1], each[0])):
            yield describe_share(name, share, len(rows), float(rows.lengths.mean()), len(self), epochs, unit)


def describe_equal_files(one: Path, other: Path, key: str = "data.mix") -> str:
    """Return the error of two files of a mixture that are one."""
    weights = ", with the sum of the weights" if key == "data.mix" else ""
    return f"{key}: {one} and {other} have the same content; list it once{weights}"


def compute_shares(weights: Sequence[float]) -> tuple[Fraction, ...]:
    """The share of each weight, exactly as it is written: 0.1 is a tenth, not the nearest binary number."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    return tuple(weight / sum(exact) for weight in exact)


def describe_share(name: str, share: Fraction, rows: int, mean: float, epoch: int, epochs: int | None, unit: str = POSITIONS) -> str:
    """Return one line on a source. `mean`: length of its rows, counted in `unit`; `epoch`: samples of an epoch of the mixture."""
    drawn = share * epoch
    whole = "" if epochs is None else f", {float(drawn * epochs / rows):.3g} in all {format_count(epochs, 'epoch')}"
    return (
        f"{name}: {float(share):.4g} of the samples ({format_count(rows, 'row')} of {mean:.0f} {unit} on average; "
        f"{float(drawn / rows):.3g} passes in an epoch{whole})"
    )


def name_validation_sources(paths: Sequence[Path | RemoteAddress]) -> tuple[str, ...]:
    """Return the names of several files of `data.val`, as `name_sources` does. Raises `UserError` also for the name `sample`, since
    `sample/NAME` in `checkpoint.best_by` is a metric of samples."""
    names = name_sources(paths, "data.val")
    if "sample" in names:
        raise UserError(f"data.val: {paths[names.index('sample')]}: the name sample is that of the metrics of samples; rename the file")
    return names


def name_sources(paths: Sequence[Path | RemoteAddress], key: str = "data.mix") -> tuple[str, ...]:
    """Return a name for each file: its stem, or with as many of its folders as make the names unique. Raises `UserError`, in the name of
    the config `key`, for the same path twice, and for files that differ only in their ending."""
    parts = [PurePosixPath(str(path)).with_suffix("").parts for path in paths]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = tuple("/".join(part[-depth:]) for part in parts)
        if len({*names}) == len(names):
            return names
    twice = next(str(path) for path, part in zip(paths, parts, strict=True) if parts.count(part) > 1)
    raise UserError(f"{key}: {twice} is listed twice, or another file has its name with another ending; list it once, or rename it")


def describe_changes(was: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> list[str]:
    """Return the differences between the sources that `identify` returned for two mixtures, one phrase each; empty if they have the same
    order."""
    before, after = {each["digest"]: each for each in was}, {each["digest"]: each for each in now}
    found = [f"{before[key]['name']} was removed or changed" for key in before if key not in after]
    found += [f"{after[key]['name']} was added or changed" for key in after if key not in before]
    for key in before.keys() & after.keys():
        if before[key]["share"] != after[key]["share"]:
            found.append(f"{after[key]['name']} had the share {before[key]['share']}, now {after[key]['share']}")
        elif before[key]["rows"] != after[key]["rows"] or before[key]["positions"] != after[key]["positions"]:
            found.append(
                f"{after[key]['name']} had {before[key]['rows']:,} rows of {before[key]['positions']:,} positions, now "
                f"{after[key]['rows']:,} of {after[key]['positions']:,}"
            )
    return sorted(found)
