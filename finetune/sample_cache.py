"""A sample as bytes and back: what the cache beside a length index holds, one record a row.

A record is a line of JSON, one `[name, type, type as stored, shape]` for each tensor, padded to 8 bytes; then their values, little-endian,
each padded to 8 bytes. Integers are stored in the smallest type that holds them, which loses nothing: a chat takes 5 bytes a token, speech
about 50 a position. Nothing in a record can run, and what it says of its sizes is checked against its length.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finetune import strict_json
from finetune.recipe import Sample

INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*INTEGERS, torch.int8, torch.bool, *FLOATS)}
NAMES = {dtype: name for name, dtype in TYPES.items()}
STORED = {
    name: ("uint8",) if name == "bool" else tuple(NAMES[each] for each in INTEGERS) if dtype in INTEGERS else (name,)
    for name, dtype in TYPES.items()
}
"""Under which types the values of each type are stored."""
ALIGNMENT = 8
"""Bytes. Of the widest type, so that each tensor is a view of the record."""
MOST_DIMENSIONS = 16


def encode(sample: Sample) -> bytes:
    """The record of a sample. Raises `TypeError` naming what is no tensor, or one of a type that no record holds."""
    heads, parts = [], []
    for name, tensor in sample.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in NAMES:
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"a recipe's `read` gave {name!r} as {kind}; a sample is a dict of tensors of {', '.join(TYPES)}")
        stored = _narrowed(tensor.detach().cpu().contiguous())
        heads.append([name, NAMES[tensor.dtype], NAMES[stored.dtype], list(tensor.shape)])
        raw = stored.reshape(-1).view(torch.uint8).numpy().tobytes()
        parts += [raw, bytes(-len(raw) % ALIGNMENT)]
    head = json.dumps(heads, separators=(",", ":")).encode()
    return b"".join([head, b" " * (-(len(head) + 1) % ALIGNMENT), b"\n", *parts])


def _narrowed(tensor: Tensor) -> Tensor:
    """The same values in the smallest type that holds them all."""
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8)
    if tensor.dtype not in INTEGERS or not tensor.numel():
        return tensor
    low, high = (int(value) for value in torch.aminmax(tensor))
    return tensor.to(next(dtype for dtype in INTEGERS if torch.iinfo(dtype).min <= low and high <= torch.iinfo(dtype).max))


def decode(record: bytearray) -> Sample:
    """The sample of a record, its tensors in the order, types and shapes in which `encode` was given them. They may share the record's
    memory. Raises `ValueError` for what is no record."""
    offset = record.find(b"\n") + 1
    heads = strict_json.loads(bytes(record[:offset]))
    if not isinstance(heads, list):
        raise ValueError("it does not begin with a list of tensors")
    sample: Sample = {}
    for head in heads:
        name, dtype, stored, shape = _checked(head)
        count = math.prod(shape)
        size = count * stored.itemsize
        if offset + size > len(record):
            raise ValueError(f"{name!r} takes {size:,} bytes from byte {offset:,} on, and it has {len(record):,}")
        # By numpy, which keeps the interpreter for this much: each operation of torch would hand it to the training thread and back.
        values = np.frombuffer(record, _in_numpy(stored), count, offset).reshape(shape).astype(_in_numpy(dtype), copy=False)
        sample[name] = torch.from_numpy(values).view(dtype) if dtype == torch.bfloat16 else torch.from_numpy(values)
        offset += size + -size % ALIGNMENT
    if offset != len(record) or len(sample) < len(heads):
        raise ValueError(f"its tensors take {offset:,} bytes, and it has {len(record):,}")
    return sample


def _in_numpy(dtype: torch.dtype) -> str:
    """Its name there; bfloat16, which numpy has not, as the integer of its bits."""
    return "int16" if dtype == torch.bfloat16 else NAMES[dtype]


def _checked(head: Any) -> tuple[str, torch.dtype, torch.dtype, list[int]]:
    """One tensor as the record describes it. Raises `ValueError`."""
    match head:
        case [str(name), str(dtype), str(stored), list(shape)] if dtype in TYPES and stored in STORED[dtype]:
            if len(shape) < MOST_DIMENSIONS and all(type(size) is int and 0 <= size < 2**31 for size in shape):
                return name, TYPES[dtype], TYPES[stored], shape
    raise ValueError(f"{head!r:.80} describes no tensor")
