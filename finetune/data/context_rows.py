"""Earlier rows of a data file at the beginning of a row's sample, such as the turns of a conversation before it.

The rule uses nothing but the data file and the recipe's options, so samples are the same on any number of ranks and after a resume, and no
row of validation data is in a training sample or the other way round. Rows of the same series are ordered by their end. A row before which
k rows of its series have ended begins with the last k modulo (most + 1) of them, so each number from 0 to `most` is equally frequent: the
model also learns rows without context. The oldest ones are left out if together they last longer than the recipe allows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import ContextLimits, Recipe, RowPlace, Sample
from overtone.finetune.storage import input_files, strict_json

REMEMBERED = 64
"""Samples to keep: rows of a series mostly follow each other in a file, so one is context of the next ones."""


class EarlierRow(NamedTuple):
    """A row that may be context of others."""

    end: float
    begin: float
    offset: int
    """First byte in the file."""
    bytes: int
    line: int
    """Line number in the data file, from 1."""


@dataclass
class EarlierRows:
    """The rows of one data file by series, which can be sent to other processes."""

    path: Path
    limits: ContextLimits
    series: dict[str, list[EarlierRow]]
    """Rows of each series, in order of their ends."""
    _samples: dict[int, Sample] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, path: Path, locate: Callable[[dict[str, Any]], RowPlace], limits: ContextLimits) -> EarlierRows:
        """Read the places of all rows of a file. Rows without a place cannot be context of other rows: they are reported as invalid when
        they are read themselves."""
        found, offset = dict[str, list[EarlierRow]](), 0
        for line, raw in enumerate(input_files.read_lines(path), start=1):
            with suppress(UserError):
                if raw.strip():
                    place = locate(strict_json.loads_object(raw))
                    found.setdefault(place.series, []).append(EarlierRow(place.end, place.begin, offset, len(raw), line))
            offset += len(raw)
        return cls(path, limits, {series: sorted(rows) for series, rows in found.items()})

    def find(self, place: RowPlace) -> list[EarlierRow]:
        """Return the rows at the beginning of the sample of the row at `place`, oldest first; see the module's docstring."""
        rows = self.series.get(place.series, [])
        ended = bisect_right(rows, place.begin, key=lambda row: row.end)
        chosen = rows[ended - ended % (self.limits.rows + 1) : ended]
        while sum(row.end - row.begin for row in chosen) > self.limits.duration:
            del chosen[0]
        return chosen

    def read_sample(self, row: EarlierRow, recipe: Recipe, processor: Any, folder: Path) -> Sample:
        """Return the sample of an earlier row, without its context. Raises `UserError` with its line for an invalid row."""
        if row.offset not in self._samples:
            with input_files.open_file(self.path) as file:
                file.seek(row.offset)
                raw = file.read(row.bytes)
            try:
                self._samples[row.offset] = recipe.read(strict_json.loads_object(raw), processor, folder)
            except UserError as error:
                raise UserError(f"its context, the row of line {row.line}, cannot be used: {error}") from None
            if len(self._samples) > REMEMBERED:
                del self._samples[next(iter(self._samples))]
        return self._samples[row.offset]


def find_earlier_rows(path: Path, recipe: Recipe, options: BaseModel) -> EarlierRows | None:
    """Return the rows of a file as context of each other; None if the recipe's samples have no context with these options."""
    limits = None if recipe.context is None else recipe.context.limits(options)
    if recipe.context is None or not limits or not limits.rows or not path.is_file():
        return None
    return EarlierRows.of(path, recipe.context.locate, limits)


def read_with_context(recipe: Recipe, processor: Any, row: dict[str, Any], folder: Path, earlier: EarlierRows | None) -> Sample:
    """Return the sample of a row: what `read` of the recipe returns, with its context if it has any. Raises `UserError` for an invalid
    row, and names the line of invalid context."""
    sample = recipe.read(row, processor, folder)
    if earlier is None or recipe.context is None:
        return sample
    before = [earlier.read_sample(each, recipe, processor, folder) for each in earlier.find(recipe.context.locate(row))]
    return recipe.context.join([*before, sample], processor) if before else sample
