"""Sample cache format: serializes tokenized samples to binary records, one per row of the data file.

A record is a line of JSON with `[name, type, type as stored, shape]` for each tensor, padded to 8 bytes, followed by the values,
little-endian, each tensor padded to 8 bytes. Integers are stored in the smallest type that fits: a chat takes 5 bytes per token, speech
about 50 per position. A record cannot contain code, and the sizes in it are checked against its length.
"""

from __future__ import annotations

import functools
import json
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from overtone.finetune.recipe import Sample
from overtone.finetune.storage import strict_json

INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*INTEGERS, torch.int8, torch.bool, *FLOATS)}
NAMES = {dtype: name for name, dtype in TYPES.items()}
STORED = {
    name: ("uint8",) if name == "bool" else tuple(NAMES[each] for each in INTEGERS) if dtype in INTEGERS else (name,)
    for name, dtype in TYPES.items()
}
"""Type → the types in which its values may be stored."""
ALIGNMENT = 8
"""Alignment in bytes: the size of the widest type, so that each tensor can be a view of the record."""
MOST_DIMENSIONS = 16


def encode(sample: Sample) -> bytes:
    """Return the record of a sample. Raises `TypeError` for values that are not tensors, and for unsupported names, types and shapes."""
    heads, parts = [], []
    for name, tensor in sample.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in NAMES:
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"a recipe's `read` returned {name!r} as {kind}; a sample is a dict of tensors of {', '.join(TYPES)}")
        stored = _narrow_integers(tensor.detach().cpu().contiguous())
        heads.append([name, NAMES[tensor.dtype], NAMES[stored.dtype], list(tensor.shape)])
        raw = stored.reshape(-1).view(torch.uint8).numpy().tobytes()
        parts += [raw, bytes(-len(raw) % ALIGNMENT)]
    head = json.dumps(heads, separators=(",", ":")).encode()
    head += b" " * (-(len(head) + 1) % ALIGNMENT) + b"\n"
    try:
        _layout(head)  # check it now, or each run would fail at this row, and cache it again
    except ValueError as error:
        raise TypeError(f"a recipe's `read` returned a sample that cannot be cached: {error}") from None
    return b"".join([head, *parts])


def _narrow_integers(tensor: Tensor) -> Tensor:
    """The same values in the smallest integer type that fits."""
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8)
    if tensor.dtype not in INTEGERS or not tensor.numel():
        return tensor
    low, high = (int(value) for value in torch.aminmax(tensor))
    return tensor.to(next(dtype for dtype in INTEGERS if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max))


def decode(record: bytearray) -> Sample:
    """Return the sample of a record, with the order, types and shapes of tensors that were encoded. They may share the record's memory.
    Raises `ValueError` for an invalid record."""
    begin = record.find(b"\n") + 1
    layout = _layout(bytes(record[:begin]))
    if begin + layout.bytes != len(record):
        raise ValueError(f"its tensors take {begin + layout.bytes:,} bytes, and it has {len(record):,}")
    # With numpy, which keeps the interpreter lock here: each operation of torch would release it to the training thread.
    sample: Sample = {}
    for name, dtype, stored, shape, offset in layout.tensors:
        values = np.ndarray(shape, stored, record, begin + offset)
        sample[name] = torch.from_numpy(values if stored == dtype else values.astype(dtype))
    for name in layout.bfloats:
        sample[name] = sample[name].view(torch.bfloat16)
    return sample


class _Layout(NamedTuple):
    """Offsets of the tensors in a record."""

    tensors: tuple[tuple[str, np.dtype[Any], np.dtype[Any], tuple[int, ...], int], ...]
    """Name, type, type as stored, shape, and offset after the first line."""
    bfloats: tuple[str, ...]
    """Tensors of bfloat16, which numpy represents as integers with the same bits."""
    bytes: int
    """Size of all tensors."""


@functools.lru_cache(maxsize=8192)
def _layout(head: bytes) -> _Layout:
    """Parse the first line of a record; samples of the same length share it. Raises `ValueError`."""
    heads = strict_json.loads(head)
    if not isinstance(heads, list):
        raise ValueError("it does not begin with a list of tensors")
    tensors, bfloats, offset = [], [], 0
    for each in heads:
        name, dtype, stored, shape = _parse_tensor_head(each)
        if dtype == torch.bfloat16:
            bfloats.append(name)
        tensors.append((name, np.dtype(_numpy_name(dtype)), np.dtype(_numpy_name(stored)), tuple(shape), offset))
        size = math.prod(shape) * stored.itemsize
        offset += size + -size % ALIGNMENT
    if len({name for name, *_ in tensors}) < len(heads):
        raise ValueError("two of its tensors have one name")
    return _Layout(tuple(tensors), tuple(bfloats), offset)


def _numpy_name(dtype: torch.dtype) -> str:
    """numpy's name of a type; for bfloat16, which numpy lacks, int16."""
    return "int16" if dtype == torch.bfloat16 else NAMES[dtype]


def _parse_tensor_head(head: Any) -> tuple[str, torch.dtype, torch.dtype, list[int]]:
    """Validate the description of one tensor. Raises `ValueError`."""
    match head:
        case [str(name), str(dtype), str(stored), list(shape)] if dtype in TYPES and stored in STORED[dtype]:
            if len(shape) < MOST_DIMENSIONS and all(type(size) is int and 0 <= size < 2**31 for size in shape):
                return name, TYPES[dtype], TYPES[stored], shape
    raise ValueError(f"{head!r:.80} describes no tensor")
