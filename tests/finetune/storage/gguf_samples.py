"""Writes small GGUF files for tests, by the text of the format's description alone."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

ALIGNMENT = 32
TYPES = {"F32": (0, "<f4"), "F16": (1, "<f2"), "BF16": (30, "<u2"), "Q8_0": (8, "u1")}


class Unsigned(int):
    """A number that is stored as an unsigned one of 32 bits, like ids of tokens."""


def text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def value(found: Any) -> bytes:
    """Type and content of a metadata value."""
    if isinstance(found, bool):
        return struct.pack("<I?", 7, found)
    if isinstance(found, int):
        return struct.pack("<II", 4, found) if found >= 0 else struct.pack("<Iq", 11, found)
    if isinstance(found, float):
        return struct.pack("<If", 6, found)
    if isinstance(found, str):
        return struct.pack("<I", 8) + text(found)
    kind = 8 if found and isinstance(found[0], str) else 6 if found and isinstance(found[0], float) else 5
    inner = b"".join(text(one) if kind == 8 else struct.pack("<f" if kind == 6 else "<i", one) for one in found)
    return struct.pack("<IIQ", 9, kind, len(found)) + inner


def write_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[str, np.ndarray]], version: int = 3) -> Path:
    """`tensors`: name → type and stored numbers; of Q8_0, bytes whose last dimension has 34 for each 32 numbers."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + value(found) for key, found in metadata.items())
    data = b""
    for name, (kind, array) in tensors.items():
        number, form = TYPES[kind]
        shape = (*array.shape[:-1], array.shape[-1] // 34 * 32) if kind == "Q8_0" else array.shape
        data = data.ljust(-(-len(data) // ALIGNMENT) * ALIGNMENT, b"\0")
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, len(data))
        data += array.astype(form).tobytes()
    path.write_bytes(head.ljust(-(-len(head) // ALIGNMENT) * ALIGNMENT, b"\0") + data)
    return path
