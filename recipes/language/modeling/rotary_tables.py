"""Rotary tables that depend on the length of a sample: each sample gets the table that it would get alone.

Some rotary embeddings of transformers change with the highest position of a call (rotary type `dynamic`), or switch to other frequencies
above a length (`longrope`). They see a whole row, so a sample would be computed with the table of the longest sample beside it. `dynamic`
also remembers the longest row so far, so a resumed run would differ from an unbroken one.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

LONGEST = 2**24
"""A table that is the same for samples of 2 and of so many positions depends on no length."""


class SampleTables(nn.Module):
    """A rotary embedding that makes the table of each sample separately, and keeps no state from one call to the next."""

    def __init__(self, rotary: nn.Module, switch: int) -> None:
        """`switch`: samples of at most so many positions have the same table."""
        super().__init__()
        self.rotary, self.switch = rotary, switch
        self.rows: tuple[tuple[int, ...], ...] = ()
        """Lengths of the samples of each row of the current batch; (): each row is one sample without padding. It is an attribute, since
        activation checkpointing calls blocks again, in the backward pass."""

    def forward(self, states: Tensor, position_ids: Tensor, *given: Any, **named: Any) -> Any:
        """Compute the tables like the embedding: hidden states, of which only type and device matter, and positions [1 or B, S] → tables [1
        or B, S, D]."""

        def make(positions: Tensor) -> Any:
            with restored(self.rotary):
                return self.rotary(states, positions, *given, **named)

        if not self.rows or max(map(max, self.rows)) <= self.switch:
            return make(position_ids)
        # Rows without positions of their own share one row of positions.
        rows = position_ids.expand(len(self.rows), -1).unbind()
        made = [self._table_of_row(make, row.unsqueeze(0), lengths) for row, lengths in zip(rows, self.rows, strict=True)]
        return _concatenate(made, dim=0)

    def _table_of_row(self, make: Any, positions: Tensor, lengths: tuple[int, ...]) -> Any:
        """The table [1, S, D] of a row of samples, the first at its beginning. What follows them is padding."""
        short = make(positions.clamp(max=self.switch - 1))
        parts, start = [], 0
        for length in lengths:
            end = start + length
            parts.append(make(positions[:, start:end]) if length > self.switch else _slice(short, start, end))
            start = end
        return _concatenate([*parts, _slice(short, start, positions.shape[1])], dim=1)


def _concatenate(tables: list[Any], dim: int) -> Any:
    """A table is one tensor, or a pair of cosine and sine."""
    if isinstance(tables[0], Tensor):
        return torch.cat(tables, dim)
    return tuple(torch.cat(parts, dim) for parts in zip(*tables, strict=True))


def _slice(table: Any, start: int, end: int) -> Any:
    return tree_map(lambda part: part[:, start:end], table)


@contextmanager
def restored(rotary: nn.Module) -> Iterator[None]:
    """While open, the embedding may change its buffers and attributes; afterwards it has those of before."""
    attributes = dict(vars(rotary))
    buffers = {name: buffer.clone() for name, buffer in rotary.named_buffers(recurse=False)}
    try:
        yield
    finally:
        vars(rotary).clear()
        vars(rotary).update(attributes)
        rotary._buffers.update(buffers)


def separate_samples(model: nn.Module) -> list[SampleTables]:
    """Replace, in place, each rotary embedding whose table depends on the length of its row; returns what replaces them. Buffers must be
    real."""
    made = {path: SampleTables(module, switch) for path, module in model.named_modules() if (switch := find_switch(module)) is not None}
    for path, module in made.items():
        model.set_submodule(path, module)
    return list(made.values())


def find_switch(module: nn.Module) -> int | None:
    """Return the most positions of a sample whose table equals that of the shortest ones. None for a table that depends on no length, and
    for any other module. It is found by calls, so it needs no list of rotary types."""
    frequencies = [name for name, _ in module.named_buffers(recurse=False) if name.endswith("inv_freq")]
    parameters = inspect.signature(module.forward).parameters
    if not frequencies or "position_ids" not in parameters:
        return None
    kinds = [name.removesuffix("inv_freq").removesuffix("_") for name in frequencies]
    kinds = [kind for kind in kinds if kind and not kind.endswith("original")] if "layer_type" in parameters else []
    found = [_find_switch(module, (kind,)) for kind in kinds] or [_find_switch(module, ())]
    return min(filter(None, found), default=None)


def _find_switch(rotary: nn.Module, kind: tuple[str, ...]) -> int | None:
    """`kind`: the type of layer, for an embedding that has a table for each."""

    def table_at_1(length: int) -> Any:
        with restored(rotary), torch.no_grad():
            table = rotary(torch.zeros(1, 2, 1), torch.tensor([[1, length - 1]]), *kind)
        return [part[:, 0] for part in ((table,) if isinstance(table, Tensor) else table)]

    shortest = table_at_1(2)

    def same(length: int) -> bool:
        return all(map(torch.equal, table_at_1(length), shortest))

    if same(LONGEST):
        return None
    low, high = 2, LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if same(middle) else (low, middle)
    return low
