"""Checks the tensors of a GGUF file: their number of elements, their types, and that every stored number is finite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from overtone.finetune.storage import input_files
from overtone.finetune.storage.gguf_files import TENSOR_TYPES, GgufHeader, GgufTensor

TYPE_NAMES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
"""Value of --quantize → type of the tensors with two or more dimensions."""
DERIVED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that the converter computes from the config."""
BLOCK_BYTES = 2**24
EXPONENTS = {"F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80), "F32": ("<u4", 0x7F800000)}
"""Type → its stored form, and the bits of the exponent: all of them are set in infinity and NaN."""


def find_problems(path: Path, header: GgufHeader, number_type: str, elements: int) -> Iterator[str]:
    """Yield what is wrong with the tensors of a file. `elements`: how many numbers the exported weights have."""
    found = sum(tensor.elements for tensor in header.tensors if tensor.name not in DERIVED)
    if found != elements:
        yield f"it has {found:,} numbers, where the exported weights have {elements:,}"
    known = {TYPE_NAMES[number_type], "F32", *(("F16",) if number_type == "q8_0" else ())}
    for tensor in header.tensors:
        name = TENSOR_TYPES.get(tensor.type, (f"type {tensor.type}", 1, 1))[0]
        if name not in known:
            yield f"{tensor.name} is stored as {name}, where {number_type} was requested"
            return
    yield from find_infinite(path, header)


def count_unquantized(header: GgufHeader) -> int:
    """Return the number of tensors of a q8_0 file that stay in f16, because their rows are not divisible by a block."""
    return sum(TENSOR_TYPES[tensor.type][0] == "F16" for tensor in header.tensors)


def find_infinite(path: Path, header: GgufHeader) -> Iterator[str]:
    """The first tensor with an infinite number or NaN: f16 ends at 65,504."""
    with input_files.open_file(path) as file:
        for tensor in header.tensors:
            file.seek(header.data_start + tensor.offset)
            left = count_bytes(tensor)
            while left:
                block = file.read(min(left, BLOCK_BYTES // 68 * 68))  # whole blocks of q8_0, and whole numbers of fp32
                if not block:
                    yield f"the file ends within {tensor.name}"
                    return
                if not is_finite(block, TENSOR_TYPES[tensor.type][0]):
                    yield f"{tensor.name} has values beyond the range of {TENSOR_TYPES[tensor.type][0]}"
                    return
                left -= len(block)


def count_bytes(tensor: GgufTensor) -> int:
    """Return the size of a tensor's data."""
    _, elements, size = TENSOR_TYPES[tensor.type]
    return tensor.elements // elements * size


def is_finite(block: bytes, kind: str) -> bool:
    """Return whether the numbers in whole blocks of a tensor's data are finite; of q8_0, the scales."""
    if kind == "Q8_0":
        block, kind = np.frombuffer(block, np.uint8).reshape(-1, 34)[:, :2].tobytes(), "F16"
    stored, exponent = EXPONENTS[kind]
    return not bool(np.any((np.frombuffer(block, np.dtype(stored)) & exponent) == exponent))
