"""Measures a row by tokenizing it: its length, whether it is dropped or truncated, and its record for the sample cache.

The record is of the sample that the recipe's `read` returns, so training never calls `read` again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overtone.finetune.config import Data, Train
from overtone.finetune.data import referenced_file_changes, sample_serialization
from overtone.finetune.data.context_rows import EarlierRows, read_with_context
from overtone.finetune.data.index_building import Measured
from overtone.finetune.errors import UserError
from overtone.finetune.recipe import Recipe, Sample


@dataclass(frozen=True)
class LengthLimit:
    """Maximum length of a sample, and how to handle longer ones."""

    positions: int
    key: str
    """Config key that sets the length."""
    too_long: str

    @classmethod
    def of(cls, data: Data, train: Train) -> LengthLimit:
        key = "train.micro_tokens" if data.sequence_length is None else "data.sequence_length"
        return cls(longest_sample(data, train), key, data.too_long)


def longest_sample(data: Data, train: Train) -> int:
    return data.sequence_length or train.micro_tokens


def measure_row(
    limit: LengthLimit, recipe: Recipe, processor: Any, row: dict[str, Any], folder: Path, earlier: EarlierRows | None = None
) -> Measured:
    """Return the length of a row with its context. Raises `UserError` for an invalid row, and for a too long one under `data.too_long:
    error`."""
    return apply_limit(limit, recipe, read_with_context(recipe, processor, row, folder, earlier))


def encode_row(
    limit: LengthLimit, folder: Path, recipe: Recipe, processor: Any, row: dict[str, Any], earlier: EarlierRows | None = None
) -> Measured:
    """As `measure_row`, with the state of the files that the row names and what of it is not used, and, unless the row is dropped, with the
    record of the sample before truncation."""
    named = tuple(referenced_file_changes.describe_files(recipe.files(row), folder))  # before they are read: a later change is then noticed
    sample = read_with_context(recipe, processor, row, folder, earlier)
    found = apply_limit(limit, recipe, sample)._replace(files=named, unused=tuple(recipe.list_unused(row, processor)))
    return found if found.left_out else found._replace(sample=sample_serialization.encode(sample))


def apply_limit(limit: LengthLimit, recipe: Recipe, sample: Sample) -> Measured:
    positions = recipe.length(sample)
    if positions <= limit.positions:
        return Measured(positions)
    if limit.too_long == "drop":
        return Measured(0, left_out=f"longer than {limit.positions} positions")
    if limit.too_long == "error" or recipe.truncate is None:
        raise UserError(f"{positions} positions do not fit {limit.key}: {limit.positions}; raise it, or set data.too_long: drop")
    if not any(recipe.collate([recipe.truncate(sample, limit.positions)]).targets.values()):
        return Measured(0, left_out=f"no training targets in the first {limit.positions} positions")
    return Measured(limit.positions, cut=True)
