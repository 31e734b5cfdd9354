"""A weight with a low-rank update, W + L·R, that products apply without computing the sum.

It takes the place of a parameter that a layer reads itself, such as the stacked weights of experts. x·(W + L·R) is computed as
x·W + (x·L)·R, as an adapter beside a linear layer is, so the backward pass keeps neither the sum nor its gradient. Any other operation gets
the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

PRODUCTS = frozenset({"matmul", "mm", "bmm"})
"""Names of torch's products of two tensors."""
GROUPED = frozenset({"_grouped_mm", "grouped_mm_fallback"})
"""Names of products of torch and transformers of groups of rows, which end at `offs`, each with its own matrix."""
ALIGNMENT = 16
"""Bytes that divide the rows of operands of torch's grouped product."""


class LowRankWeight:
    """W [*, m, n] + L [*, m, r] · R [*, r, n] in place of a tensor [*, m, n]."""

    def __init__(self, base: Tensor, left: Tensor, right: Tensor) -> None:
        self.base, self.left, self.right = base, left, right

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], _: object, args: Any = (), kwargs: Any = None) -> Any:
        given = {key: value for key, value in (kwargs or {}).items() if value is not None}
        name = getattr(function, "__name__", "")
        # A bias would be added to each of the products, and each would be written to `out`.
        if (name in PRODUCTS or name in GROUPED) and len(args) == 2 and given.keys() <= {"offs"}:
            return multiply(lambda first, second: function(first, second, **given), args[0], args[1], aligned=name in GROUPED)
        if name == "linear" and len(args) > 1 and isinstance(args[1], LowRankWeight):
            inputs, weight, bias = args[0], args[1], args[2] if len(args) > 2 else given.get("bias")
            return functional.linear(inputs, weight.base, bias) + functional.linear(functional.linear(inputs, weight.right), weight.left)
        args, given = tree_map(add_update, (args, given))
        return function(*args, **given)

    @property
    def shape(self) -> torch.Size:
        return self.base.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def device(self) -> torch.device:
        return self.base.device

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of Python and other libraries, for which this is no tensor
            raise AttributeError(name)
        return getattr(self.to_tensor(), name)

    def __getitem__(self, index: Any) -> Any:
        """The weights of some experts, if the first of several axes is indexed by numbers."""
        if self.base.dim() < 3 or isinstance(index, tuple | list) or index is None or index is Ellipsis:
            return self.to_tensor()[index]
        return LowRankWeight(self.base[index], self.left[index], self.right[index])

    def __matmul__(self, other: Tensor) -> Tensor:
        return multiply(torch.matmul, self, other)

    def transpose(self, first: int, second: int) -> Tensor | LowRankWeight:
        if {first % self.base.dim(), second % self.base.dim()} != {self.base.dim() - 2, self.base.dim() - 1}:
            return self.to_tensor().transpose(first, second)
        return LowRankWeight(*(each.transpose(-2, -1) for each in (self.base, self.right, self.left)))

    def to_tensor(self) -> Tensor:
        """W + L·R."""
        return self.base + self.left @ self.right


def multiply(
    product: Callable[[Tensor, Tensor], Tensor], first: Tensor | LowRankWeight, second: Tensor | LowRankWeight, aligned: bool = False
) -> Tensor:
    """Return the product of a tensor and a `LowRankWeight`, or the other way round. `aligned`: rows must have whole multiples of
    `ALIGNMENT`."""
    if isinstance(first, LowRankWeight):
        return product(first.base, add_update(second)) + product(first.left, product(first.right, add_update(second)))
    assert isinstance(second, LowRankWeight)  # at least one of the two is
    left, right = align_rank(second.left, second.right) if aligned else (second.left, second.right)
    return product(first, second.base) + product(product(first, left), right)


def align_rank(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return both factors with zeros up to a rank whose rows have whole multiples of `ALIGNMENT`."""
    missing = -left.shape[-1] % (ALIGNMENT // left.element_size())
    return (functional.pad(left, (0, missing)), functional.pad(right, (0, 0, 0, missing))) if missing else (left, right)


def add_update(value: Any) -> Any:
    """Return a `LowRankWeight` as a tensor; other values as they are."""
    return value.to_tensor() if isinstance(value, LowRankWeight) else value
