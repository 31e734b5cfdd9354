"""Results that a recipe makes from rows: samples, micro-batches, the sums of a loss, and earlier rows as context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple

from pydantic import BaseModel, JsonValue
from typing_extensions import TypeVar

if TYPE_CHECKING:
    from torch import Tensor


OptionsT = TypeVar("OptionsT", bound=BaseModel, default=BaseModel)
"""A recipe's `Options`. A plain `Recipe` is one with any options."""
ProcessorT = TypeVar("ProcessorT", default=object)
"""A recipe's `Loaded.processor`: tokenizer, ids, speaker table. A plain `Recipe` is one with any processor."""
Row = dict[str, JsonValue]
"""One line of a data file, before the recipe has checked it."""
POSITIONS = "positions"
"""The word for what `Recipe.length` counts, unless the recipe has its own."""
Sample = dict[str, "Tensor"]
"""One row as tensors without a batch dimension."""


@dataclass(frozen=True)
class DataPreparation:
    """Preparation of training data for a recipe."""

    advice: str = "It has one JSON object in each line; the recipe's `read` defines the keys."
    """Sentences and commands for the error of a run without data."""
    verb: str | None = None
    """Verb of data_prep that converts raw data."""
    row_keys: tuple[frozenset[str], ...] = ()
    """A training row has all keys of one of these sets."""


class Term(NamedTuple):
    """One part of the loss, or, with weight 0, a metric."""

    sum: Tensor
    """fp32 scalar: summed over the supervised targets of this micro-batch, never a mean."""
    weight: float


@dataclass(frozen=True)
class Batch:
    """One micro-batch as the recipe collated it."""

    tensors: dict[str, Tensor]
    """Inputs of the model's forward; the first dimension is the sample, or of row numbers, which count through all samples, themselves."""
    targets: dict[str, int]
    """Term of the loss → number of its targets in this batch. It is known before the forward pass, because the global count divides the
    loss."""
    lengths: tuple[int, ...] = ()
    """Lengths of the samples packed into one row, or of each row. They stay on the host, where a loop over them does not wait for the
    device."""


class RowPlace(NamedTuple):
    """Place of a row in a series of rows."""

    series: str
    """Rows of the same series can be context of each other: the name of a recording, of a book, of a conversation."""
    begin: float
    """Begin of the row in any unit, such as seconds in a recording."""
    end: float
    """End of the row, after `begin`. A row can be context of rows that begin at its end or later."""


class ContextLimits(NamedTuple):
    """Limits on the context of a sample."""

    rows: int
    """Maximum number of earlier rows of a sample; 0 for none."""
    duration: float
    """Maximum duration of these together, in the unit of `RowPlace`."""


@dataclass(frozen=True)
class ContextRows(Generic[OptionsT, ProcessorT]):
    """Earlier rows of the same data file at the beginning of a row's sample, such as the turns of a conversation before it.

    finetune/data/context_rows.py states which rows these are. They depend only on the data file and the options.
    """

    locate: Callable[[Row], RowPlace]
    """The place of a row; raises `UserError` for a row without one. Called only if the limits allow context."""
    limits: Callable[[OptionsT], ContextLimits]
    """The limits that the options set."""
    join: Callable[[list[Sample], ProcessorT], Sample]
    """(samples that `read` returned for the context, oldest first, and, last, for the row; processor) → the row's sample. Not called for a
    row without context. Raises `UserError` for a sample that is too long for the model."""
