"""GGUF files: reads the header (metadata, and shape, type and place of each tensor), and copies a file with other metadata.

The format is that of ggml's docs/gguf.md, version 3, little-endian. Imports no torch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT_KEY, ALIGNMENT = "general.alignment", 32
"""Key of the alignment in bytes of each tensor's data, and its default."""
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a metadata value → its form for `struct`."""
UNSIGNED, SIGNED, FLOAT, BOOLEAN, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TENSOR_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 8: ("Q8_0", 32, 34), 30: ("BF16", 1, 2)}
"""Type of a tensor → its name, elements of a block, bytes of a block. Only those that an export has."""
LONGEST_KEY, LONGEST_STRING, MOST_VALUES, MOST_DIMENSIONS = 2**16, 2**26, 2**24, 4
"""Limits above everything that a model has: of a vocabulary, a million tokens and merges."""
BLOCK_BYTES = 2**24
MetadataValue = bool | int | str | list[float] | list[int]
"""A value that `copy_with_metadata` writes."""


class GgufTensor(NamedTuple):
    """A tensor's entry in the header."""

    name: str
    shape: tuple[int, ...]
    """Shape in numpy's order: the last dimension is contiguous."""
    type: int
    """A key of `TENSOR_TYPES`, or another type of ggml."""
    offset: int
    """Offset in bytes from `GgufHeader.data_start`."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    """The header before the tensors' data."""

    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    values: dict[str, bytes]
    """Each entry of the metadata as it is stored, key and type included."""
    tensor_entries: bytes
    """The entries of all tensors as they are stored."""
    data_start: int
    """Offset of the first tensor's data in the file."""


def is_gguf(path: Path) -> bool:
    """Return whether a file begins as a GGUF does. A file that cannot be read is none."""
    try:
        with input_files.open_file(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> GgufHeader:
    """Return the header of a GGUF file. Raises `UserError` for a damaged one, and for another version."""
    try:
        with input_files.open_file(path) as file:
            return _Reader(file).read_header()
    except (OSError, ValueError, struct.error) as error:
        raise UserError(f"{path} cannot be read as a GGUF file ({error}); download it again, or export again") from error


class _Reader:
    """Reads values from an open file, and keeps the bytes since `mark`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._kept = file, bytearray()

    def read_header(self) -> GgufHeader:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version, tensor_count, value_count = self._number("I"), self._number("Q"), self._number("Q")
        if version not in VERSIONS:
            raise ValueError(f"it has version {version}, and versions {VERSIONS[0]} and {VERSIONS[1]} are known")
        if max(tensor_count, value_count) > MOST_VALUES:
            raise ValueError(f"it claims {tensor_count:,} tensors and {value_count:,} metadata values")
        metadata: dict[str, Any] = {}
        stored: dict[str, bytes] = {}
        for _ in range(value_count):
            self._kept.clear()
            key = self._text(LONGEST_KEY)
            metadata[key] = self._value(self._number("I"))
            stored[key] = bytes(self._kept)
        self._kept.clear()
        tensors = tuple(self._tensor() for _ in range(tensor_count))
        alignment = metadata.get(ALIGNMENT_KEY, ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError(f"{ALIGNMENT_KEY} is {alignment!r}")
        return GgufHeader(metadata, tensors, stored, bytes(self._kept), _round_up(self._file.tell(), alignment))

    def _tensor(self) -> GgufTensor:
        name, dimensions = self._text(LONGEST_KEY), self._number("I")
        if dimensions > MOST_DIMENSIONS:
            raise ValueError(f"{name} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        return GgufTensor(name, shape[::-1], self._number("I"), self._number("Q"))

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._text(LONGEST_STRING)
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind != ARRAY:
            raise ValueError(f"a metadata value has type {kind}, which is unknown")
        inner, count = self._number("I"), self._number("Q")
        if count > MOST_VALUES:
            raise ValueError(f"a list of its metadata claims {count:,} values")
        if inner in NUMBERS:
            form = f"<{count}{NUMBERS[inner]}"
            return list(struct.unpack(form, self._take(struct.calcsize(form))))
        if inner != STRING:
            raise ValueError(f"a list of its metadata has values of type {inner}")
        return [self._text(LONGEST_STRING) for _ in range(count)]

    def _text(self, most: int) -> str:
        length = self._number("Q")
        if length > most:
            raise ValueError(f"a text of its header claims {length:,} bytes")
        return self._take(length).decode("utf-8", "surrogateescape")  # tokens of some vocabularies are no UTF-8

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _take(self, count: int) -> bytes:
        found = self._file.read(count)
        if len(found) != count:
            raise ValueError("it ends within its header")
        self._kept += found
        return found


def encode_value(key: str, value: MetadataValue) -> bytes:
    """A metadata entry as it is stored: a truth value, an unsigned 32-bit integer, a text, or a list of fp32 numbers or of
    signed 32-bit integers."""
    name = key.encode()
    head = struct.pack("<Q", len(name)) + name
    if isinstance(value, bool):
        return head + struct.pack("<I?", BOOLEAN, value)
    if isinstance(value, int):
        return head + struct.pack("<II", UNSIGNED, value)
    if isinstance(value, str):
        text = value.encode()
        return head + struct.pack("<IQ", STRING, len(text)) + text
    kind = SIGNED if all(isinstance(number, int) for number in value) else FLOAT
    return head + struct.pack(f"<IIQ{len(value)}{NUMBERS[kind]}", ARRAY, kind, len(value), *value)


def copy_with_metadata(source: Path, target: Path, changes: Mapping[str, MetadataValue]) -> str:
    """Copy a GGUF file into a temporary folder, with some metadata replaced or added; the tensors' data is copied block by block. Returns
    the SHA-256 of the copy. Raises `UserError` as `read_header`."""
    header = read_header(source)
    values = header.values | {key: encode_value(key, value) for key, value in changes.items()}
    return files.write_blocks(target, _list_blocks(source, header, values)).digest


def _list_blocks(source: Path, header: GgufHeader, values: Mapping[str, bytes]) -> Iterator[bytes]:
    head = MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(header.tensors), len(values)) + b"".join(values.values()) + header.tensor_entries
    yield head.ljust(_round_up(len(head), header.metadata.get(ALIGNMENT_KEY, ALIGNMENT)), b"\0")
    with input_files.open_file(source) as file:
        file.seek(header.data_start)
        while block := file.read(BLOCK_BYTES):
            yield block


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step
