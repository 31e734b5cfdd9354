"""Layouts of tensors in other tensors: which box of a parameter is which box of a tensor in the files.

transformers 5 computes with other tensors than models are released with: all experts of a layer are one parameter [experts, out, in], and
the files have one tensor for each expert. Its conversion only moves values, so it is a list of boxes. With that list, each rank reads the
slices that it needs, and an export writes the released tensors again, both without building a whole converted tensor.

A `TensorLayout` takes the place of a tensor in `torch.stack`, `cat`, `chunk`, `split` and `transpose`. So the conversions of transformers
can be applied to it; operations that do more than moving boxes raise `NotImplementedError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

ItemT = TypeVar("ItemT")
Reader = Callable[[str, tuple[slice, ...] | None], Tensor]
"""(name, slices or None for the whole tensor) → tensor; raises KeyError for an unknown name."""


@dataclass(frozen=True)
class Box:
    """A box of a tensor, and the box of another tensor that has its values."""

    begin: tuple[int, ...]
    sizes: tuple[int, ...]
    name: str
    """Name of the other tensor."""
    origin: tuple[int, ...]
    """Position at which the box begins in the other tensor."""
    axes: tuple[int | None, ...]
    """The axis of the other tensor for each axis of the box; None if that axis has length 1 and the other tensor lacks it. Axes of the
    other tensor that are not listed have length 1 in its box."""

    def cut(self, low: Sequence[int], high: Sequence[int]) -> Box | None:
        """Return the part of the box from `low` to before `high` in the tensor; None if it is empty."""
        begin = tuple(map(max, self.begin, low))
        end = tuple(min(start + size, stop) for start, size, stop in zip(self.begin, self.sizes, high, strict=True))
        if any(start >= stop for start, stop in zip(begin, end, strict=True)):
            return None
        origin = list(self.origin)
        for axis, start, own in zip(self.axes, begin, self.begin, strict=True):
            if axis is not None:
                origin[axis] += start - own
        return replace(self, begin=begin, sizes=tuple(stop - start for start, stop in zip(begin, end, strict=True)), origin=tuple(origin))

    def read(self, read: Reader) -> Tensor:
        """Return the values of the box, with its axes. `read` reads the other tensor."""
        stop = [start + 1 for start in self.origin]
        for axis, size in zip(self.axes, self.sizes, strict=True):
            if axis is not None:
                stop[axis] = self.origin[axis] + size
        values = read(self.name, tuple(map(slice, self.origin, stop)) or None)
        own = [axis for axis in self.axes if axis is not None]
        others = [axis for axis in range(len(self.origin)) if axis not in own]
        return values.permute((*own, *others)).reshape(self.sizes)

    def invert(self, name: str) -> Box:
        """Return the same pair of boxes from the other tensor's side. `name`: of the tensor that has this piece."""
        places: list[int | None] = [None] * len(self.origin)
        for place, axis in enumerate(self.axes):
            if axis is not None:
                places[axis] = place
        sizes = tuple(1 if place is None else self.sizes[place] for place in places)
        return Box(self.origin, sizes, name, self.begin, tuple(places))


@dataclass(frozen=True, eq=False)
class TensorLayout:
    """A tensor that consists of boxes of other tensors."""

    shape: torch.Size
    pieces: tuple[Box, ...]

    @classmethod
    def of(cls, name: str, shape: Sequence[int]) -> TensorLayout:
        """Return the layout of a tensor that is another one as a whole."""
        zeros = (0,) * len(shape)
        return cls(torch.Size(shape), (Box(zeros, tuple(shape), name, zeros, tuple(range(len(shape)))),))

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., object], _: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if function not in MOVES:
            raise NotImplementedError(getattr(function, "__name__", str(function)))
        return MOVES[function](*args, **(kwargs or {}))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def contiguous(self) -> TensorLayout:
        return self

    def parts(self) -> set[str]:
        """Return the names of the other tensors."""
        return {piece.name for piece in self.pieces}

    def is_same(self, name: str) -> bool:
        """Return whether this is the tensor `name` as a whole, unchanged."""
        return self.pieces == TensorLayout.of(name, self.shape).pieces

    def cut(self, slices: tuple[slice, ...] | None) -> Iterator[Box]:
        """Return the pieces inside of these slices. The slices have no step."""
        low, high = find_bounds(self.shape, slices)
        return filter(None, (piece.cut(low, high) for piece in self.pieces))

    def read(self, slices: tuple[slice, ...] | None, read: Reader) -> Tensor:
        """Return the values in these slices. Memory holds them once, and besides them one piece at a time. `read` reads the other
        tensors."""
        low, high = find_bounds(self.shape, slices)
        shape = tuple(max(0, stop - start) for start, stop in zip(low, high, strict=True))
        result: Tensor | None = None
        for piece in self.cut(slices):
            values = piece.read(read)
            if values.shape == shape:
                return values
            if result is None:
                result = torch.empty(shape, dtype=values.dtype)
            elif result.dtype != values.dtype:  # files with several types
                result = result.to(torch.promote_types(result.dtype, values.dtype))
            place_of(piece, low, result).copy_(values)
        return torch.empty(shape) if result is None else result


def place_of(piece: Box, low: Sequence[int], block: Tensor) -> Tensor:
    """Return the view of a piece in a block of its tensor that begins at `low`."""
    starts = [begin - start for begin, start in zip(piece.begin, low, strict=True)]
    return block[tuple(slice(start, start + size) for start, size in zip(starts, piece.sizes, strict=True))]


def find_bounds(shape: Sequence[int], slices: tuple[slice, ...] | None) -> tuple[list[int], list[int]]:
    """Begin and end of slices in each dimension; dimensions without one are whole."""
    given = [*(slices or ()), *[slice(None)] * (len(shape) - len(slices or ()))]
    bounds = [part.indices(size) for part, size in zip(given, shape, strict=True)]
    return [start for start, _, _ in bounds], [stop for _, stop, _ in bounds]


def read_through(layouts: Mapping[str, TensorLayout], stored: Reader) -> Reader:
    """Return a reader of the tensors of `layouts`, and of those that are stored as they are."""
    return lambda name, slices: layouts[name].read(slices, stored) if name in layouts else stored(name, slices)


def invert_layouts(layouts: Mapping[str, TensorLayout]) -> dict[str, tuple[Box, ...]]:
    """Return the name of another tensor → its boxes that are boxes of the tensors of `layouts`."""
    found: dict[str, list[Box]] = {}
    for name, layout in layouts.items():
        for piece in layout.pieces:
            found.setdefault(piece.name, []).append(piece.invert(name))
    return {name: tuple(pieces) for name, pieces in found.items()}


def count_elements(pieces: Sequence[Box]) -> int:
    return sum(math.prod(piece.sizes) for piece in pieces)


def _stack(layouts: Sequence[TensorLayout], dim: int = 0) -> TensorLayout:
    first, dim = layouts[0], dim % (layouts[0].ndim + 1)
    if any(each.shape != first.shape for each in layouts):
        raise ValueError(f"tensors of different shapes ({', '.join(sorted({str([*each.shape]) for each in layouts}))})")
    pieces = [
        replace(
            piece,
            begin=(*piece.begin[:dim], place, *piece.begin[dim:]),
            sizes=(*piece.sizes[:dim], 1, *piece.sizes[dim:]),
            axes=(*piece.axes[:dim], None, *piece.axes[dim:]),
        )
        for place, layout in enumerate(layouts)
        for piece in layout.pieces
    ]
    return TensorLayout(torch.Size([*first.shape[:dim], len(layouts), *first.shape[dim:]]), tuple(pieces))


def _join(layouts: Sequence[TensorLayout], dim: int = 0) -> TensorLayout:
    first, dim, pieces, start = layouts[0], dim % layouts[0].ndim, [], 0
    for layout in layouts:
        if (*layout.shape[:dim], *layout.shape[dim + 1 :]) != (*first.shape[:dim], *first.shape[dim + 1 :]):
            raise ValueError(f"tensors {[*first.shape]} and {[*layout.shape]}")
        pieces += [_shift(piece, dim, start) for piece in layout.pieces]
        start += layout.shape[dim]
    return TensorLayout(torch.Size([*first.shape[:dim], start, *first.shape[dim + 1 :]]), tuple(pieces))


def _chunk(layout: TensorLayout, chunks: int, dim: int = 0) -> tuple[TensorLayout, ...]:
    return _split(layout, -(-layout.shape[dim] // chunks), dim)


def _split(layout: TensorLayout, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[TensorLayout, ...]:
    dim, given = dim % layout.ndim, split_size_or_sections
    length = layout.shape[dim]
    sizes = [min(given, length - start) for start in range(0, length, given)] if isinstance(given, int) else given
    if sum(sizes) != length:
        raise ValueError(f"a tensor {[*layout.shape]} in parts of {[*sizes]}")
    found, start = [], 0
    for size in sizes:
        cut = tuple(slice(None) if axis != dim else slice(start, start + size) for axis in range(layout.ndim))
        shape = torch.Size([*layout.shape[:dim], size, *layout.shape[dim + 1 :]])
        found.append(TensorLayout(shape, tuple(_shift(piece, dim, -start) for piece in layout.cut(cut))))
        start += size
    return tuple(found)


def _transpose(layout: TensorLayout, dim0: int, dim1: int) -> TensorLayout:
    order = list(range(layout.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]

    def swap(values: Sequence[ItemT]) -> tuple[ItemT, ...]:
        return tuple(values[place] for place in order)

    pieces = [replace(each, begin=swap(each.begin), sizes=swap(each.sizes), axes=swap(each.axes)) for each in layout.pieces]
    return TensorLayout(torch.Size(swap(layout.shape)), tuple(pieces))


def _shift(piece: Box, dim: int, by: int) -> Box:
    return replace(piece, begin=(*piece.begin[:dim], piece.begin[dim] + by, *piece.begin[dim + 1 :]))


MOVES: dict[object, Callable[..., object]] = {
    torch.stack: _stack,
    torch.cat: _join,
    torch.chunk: _chunk,
    torch.split: _split,
    torch.transpose: _transpose,
}
"""Function of torch → the same for layouts."""
