"""Limits on the tensors that a library may create for a model folder, derived from the weights beside config.json.

A config.json of a few lines can describe a model of terabytes, or of a million layers. Libraries build it before they compare it with the
weights: that would fill the memory, or take hours. Imports torch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files

PICKLED = ("*.bin", "*.pt")
PER_STORED_BYTE = 16
"""Bytes that may be created for each byte of the weights: a number of two bits becomes one of four bytes."""
EXTRA_BYTES = 2**30
"""For what is not stored: attention masks, rotary tables, a new output layer, a tied one."""
EXTRA_TENSORS = 3_000
SHORTEST_ENTRY = 50
"""Bytes of a tensor's entry in the header of a safetensors file, at least."""
PER_STORED_TENSOR = 5
"""Tensors that may be created for each stored one: initial values may need temporary ones."""
MOST_BYTES, MOST_TENSORS = 2**47, 10**6
"""Limits for a folder without weights, whose size nothing else bounds, as `overtone plan` reads it."""
CREATING: frozenset[Any] = frozenset(
    {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint, torch.randperm, torch.eye}
    | {torch.arange, torch.linspace, torch.logspace, torch.empty_strided, torch.hann_window}
)
"""Functions that create a tensor from a size."""
PLACING = frozenset({"device", "generator", "out", "pin_memory"})
"""Their arguments that do not affect the size."""


@dataclass(frozen=True)
class ConstructionLimits:
    """Limits on what may be created in total."""

    bytes: int
    tensors: int
    stored: int | None
    """Bytes of the weights; None for a folder without."""

    @classmethod
    def of(cls, place: Path) -> ConstructionLimits:
        """Return the limits for the model in a folder, or in one file."""
        own = [*place.glob("*.safetensors")]
        pickled = [place] if place.is_file() else [path for pattern in PICKLED for path in place.glob(pattern)]
        if not own and not pickled:  # also if a folder inside has some, such as those of a codec: they say nothing about this model
            return cls(MOST_BYTES, MOST_TENSORS, None)
        weights = [*own, *place.glob("*/*.safetensors")]
        stored = sum(path.stat().st_size for path in (*weights, *pickled))
        entries = MOST_TENSORS if pickled else sum(map(_read_header_length, weights)) // SHORTEST_ENTRY
        return cls(stored * PER_STORED_BYTE + EXTRA_BYTES, entries * PER_STORED_TENSOR + EXTRA_TENSORS, stored)


def _read_header_length(path: Path) -> int:
    """Bytes of the header of a safetensors file; at most the file's own."""
    with input_files.open_file(path) as file:
        return min(int.from_bytes(file.read(8), "little"), path.stat().st_size)


class _CreationCounter(TorchFunctionMode):
    """Refuses the tensor that exceeds the limits, before it is allocated."""

    def __init__(self, limits: ConstructionLimits, place: Path) -> None:
        super().__init__()
        self._limits, self._place = limits, place
        self._bytes = self._tensors = 0

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func in CREATING:
            self._count(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _count(self, create: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        sizing = {key: value for key, value in kwargs.items() if key not in PLACING}
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # the call itself reports what is wrong with it
            self._bytes += create(*args, **sizing, device="meta").nbytes
        self._tensors += 1
        if self._bytes > self._limits.bytes or self._tensors > self._limits.tensors:
            stored = "there are no weights" if self._limits.stored is None else f"its weights have {self._limits.stored:,} bytes"
            raise UserError(
                f"{self._place}: its config describes a model of {self._bytes:,} bytes or more in {self._tensors:,} tensors or more, but "
                f"{stored}; download the model again, or give another one"
            )


LARGE_ELEMENTS = 2**24
"""Elements of a large tensor. Only parameters have as many: tables and masks are smaller, or have values."""


class LargeOnMeta(TorchFunctionMode):
    """While active, large tensors without values are created on the meta device. A library that makes a parameter and moves it there
    afterwards would allocate all experts of a layer: 30 GB for DeepSeek-V3, which a machine may refuse."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        given = kwargs or {}
        if func is torch.empty and given.get("device") is None and "out" not in given:
            size = given.get("size", args[0] if len(args) == 1 and isinstance(args[0], Sequence) else args)
            if all(isinstance(length, int) for length in size) and math.prod(size) >= LARGE_ELEMENTS:
                given = {**given, "device": "meta"}
        return func(*args, **given)


@contextlib.contextmanager
def limit_construction(place: Path) -> Iterator[None]:
    """While open, this thread can create only as many tensors as the weights in a folder, or in one file, justify. Raises `UserError` for
    more."""
    with _CreationCounter(ConstructionLimits.of(place), place):
        yield
