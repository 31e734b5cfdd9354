"""Preview of a run's data from some of its rows: their number, their lengths and their problems, read as training reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from overtone.finetune.config import Config, on_disk
from overtone.finetune.data import dataset_opening, referenced_file_changes, row_measurement
from overtone.finetune.data.batching import Order, count_steps
from overtone.finetune.data.context_rows import EarlierRows, find_earlier_rows, read_with_context
from overtone.finetune.data.mixture import compute_shares, describe_equal_files, describe_share, name_sources
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Recipe, Sample
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.storage.strict_json import loads_object

LOOKED_AT = 64
"""Number of rows of a large file to read, spread over it: enough to estimate lengths to a few percent."""
ALL_ROWS = 1000
"""Rows up to which a file is read whole, so that the number of steps is that of training: about a second."""
COUNTED_ROWS = 20_000
"""Rows whose steps are counted one by one, which takes less than a second; the steps of larger data are in proportion."""


@dataclass(frozen=True)
class DataPreview:
    """Estimate of the data from some of its rows."""

    rows: int
    looked_at: int
    positions: float
    """Positions of all rows of an epoch, extrapolated."""
    lengths: tuple[int, ...]
    """Lengths of the rows that were read, in positions."""
    problems: tuple[str, ...]
    """Problems of rows, with file and line."""
    shares: tuple[str, ...] = ()
    """One line for each file of `data.mix`."""

    def draw_lengths(self, rows: int) -> list[int]:
        """Return the lengths of `rows` rows: those that were read, repeated; at most `COUNTED_ROWS` of them."""
        return [*islice(cycle(self.lengths), min(rows, COUNTED_ROWS))] if self.lengths else []

    def count_steps(self, order: Order, epochs: int) -> int:
        """Optimizer steps of all epochs: exact if every row was read, else as if the others had the same lengths."""
        drawn = np.array(self.draw_lengths(self.rows), np.int64)
        if not len(drawn):
            return epochs
        return round(count_steps(order, drawn, epochs) * max(self.rows / len(drawn), 1))


def make_reader(config: Config, recipe: Recipe, processor: Any) -> RowReader:
    """Return the reader of a run's data."""
    limit = row_measurement.LengthLimit.of(config.data, config.train)
    return RowReader(recipe=recipe, name=config.recipe, options=config.options, limit=limit, processor=processor)


def preview_data(config: Config, recipe: Recipe, processor: Any) -> DataPreview:
    """Read some rows as training would. Positions are those of an epoch."""
    paths = [path for path in map(on_disk, config.data.training_files()) if path is not None]
    reader = make_reader(config, recipe, processor)
    found = [reader.preview(path) for path in paths]
    if not config.data.mix:
        return found[0]
    rows, names = sum(each.rows for each in found), name_sources([file.path for file in config.data.mix])
    shares = compute_shares([file.weight for file in config.data.mix])
    means = [each.positions / max(each.rows, 1) for each in found]
    epochs = None if config.train.steps else config.train.epochs
    lines = [
        describe_share(name, share, each.rows, mean, rows, epochs, recipe.unit)
        for name, share, each, mean in zip(names, shares, found, means, strict=True)
        if each.rows
    ]
    positions = rows * sum(float(share) * mean for share, mean in zip(shares, means, strict=True))
    problems = [*(text for each in found for text in each.problems), *find_equal_files(paths)]
    drawn = [each.draw_lengths(round(float(share) * min(rows, COUNTED_ROWS))) for share, each in zip(shares, found, strict=True)]
    lengths = tuple(length for each in drawn for length in each)
    return DataPreview(rows, sum(each.looked_at for each in found), positions, lengths, tuple(problems), tuple(lines))


def find_equal_files(paths: Sequence[Path]) -> Iterator[str]:
    """Yield a problem for each file of a mixture that has the content of an earlier one, as `MixedRows.mix` refuses it. Only files of equal
    size are read."""
    sizes = [path.stat().st_size for path in paths]
    seen: dict[str, Path] = {}
    for path, size in zip(paths, sizes, strict=True):
        if sizes.count(size) > 1 and (first := seen.setdefault(files.digest(path), path)) is not path:
            yield describe_equal_files(first, path)


@dataclass(frozen=True)
class RowReader:
    """Reads some rows of data files as training does."""

    recipe: Recipe
    name: str
    """Name or folder of the recipe."""
    options: BaseModel
    """The recipe's options."""
    limit: row_measurement.LengthLimit
    processor: Any

    def preview(self, path: Path) -> DataPreview:
        """Read some rows of a file. Positions are those of an epoch."""
        earlier = find_earlier_rows(path, self.recipe, self.options)
        problems, lengths, seen = [], [], 0
        for line, row in read_some_rows(path):
            seen += 1
            try:
                positions, sample = self.inspect_row(path, row, earlier)
            except UserError as problem:
                problems.append(f"{path}:{line}: {problem}")
                continue
            lengths.append(positions)
            if sample is None or self.recipe.rollouts is not None:  # a prompt is no sample of `collate`
                continue
            if not any(self.recipe.collate([sample]).targets.values()):
                problems.append(f"{path}:{line}: this row has no training targets")
        rows = sum(1 for raw in input_files.read_lines(path) if raw.strip())
        return DataPreview(rows, seen, rows * sum(lengths) / max(len(lengths), 1), tuple(lengths), tuple(problems))

    def read_samples(self, path: Path) -> Iterator[Sample | None]:
        """Samples of rows spread over a file, None if `data.too_long` drops one. Raises `UserError` with its place for an invalid row, and
        for a missing file that it names."""
        earlier = find_earlier_rows(path, self.recipe, self.options)
        for line, row in read_some_rows(path):
            try:
                yield self.inspect_row(path, row, earlier)[1]
            except UserError as problem:
                raise UserError(f"{path}:{line}: {problem}") from None

    def inspect_row(self, path: Path, row: dict[str, Any], earlier: EarlierRows | None) -> tuple[int, Sample | None]:
        """Return positions and sample of a row; 0 and None if `data.too_long` drops it. Raises `UserError` for an invalid row, a missing
        file that it names, and an exception of the recipe, which is a bug of the recipe."""
        recipe, folder = self.recipe, dataset_opening.data_folder(path)
        try:
            referenced_file_changes.describe_files(recipe.files(row), folder)
            found = row_measurement.measure_row(self.limit, recipe, self.processor, row, folder, earlier)
            if found.left_out:
                return 0, None
            sample = read_with_context(recipe, self.processor, row, folder, earlier)
        except UserError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {strict_json.one_line(error)}"
            raise UserError(
                f"the recipe {self.name} cannot read this row ({problem}); its functions should raise UserError with the problem"
            ) from error
        return found.positions, recipe.truncate(sample, found.positions) if found.cut and recipe.truncate is not None else sample


def read_some_rows(path: Path | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of all rows of a file, or of some that are spread over a large one, including the first; blank lines are skipped.
    Raises `UserError` for invalid JSON."""
    if path is None or not path.is_file():
        return
    with input_files.open_file(path) as file:
        lines = sum(1 for _ in input_files.split_lines(file, path))
        file.seek(0)
        stride = 1 if lines <= ALL_ROWS else lines // LOOKED_AT
        for number, raw in enumerate(input_files.split_lines(file, path), start=1):
            if (number - 1) % stride == 0 and raw.strip():
                try:
                    row = loads_object(raw)
                except UserError as problem:
                    raise UserError(f"{path}:{number}: {problem}") from None
                yield number, row
