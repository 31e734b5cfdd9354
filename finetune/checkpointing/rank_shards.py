"""Safetensors shards: one file per rank, each tensor with its offset in the full tensor; any slice can be read on any number of ranks.

The header contains the offsets under the key that torch's `HuggingFaceStorageReader` uses, so torch can read these files, too. Writing
streams tensor by tensor (torch's writer builds a shard as one bytes object, which doubles the memory), hashes while writing, and needs no
collectives, so its thread cannot interfere with training, and nothing is pickled.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from overtone.finetune.distributed.sharding import local_shard
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import local_slices
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.safetensors_opening import WeightsFile
from overtone.finetune.storage.tensor_layouts import Reader

OFFSETS_KEY = "DCP_SHARDING_INFO"
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
"""Type names of the safetensors format; a base may contain any of them."""


@dataclass(frozen=True)
class TensorShard:
    """One rank's shard of a tensor, and its offset in the full tensor."""

    value: Tensor
    offset: tuple[int, ...]


def select_own_parts(tensors: Mapping[str, Tensor], rank: int, size: int) -> dict[str, TensorShard]:
    """Return the shards that this rank writes, including its share of tensors that several ranks have."""
    parts = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        if _writes(tensor, number, rank, size):
            _, slices = local_slices(tensor)
            local = local_shard(tensor)
            if local.numel():
                parts[name] = TensorShard(local, tuple(part.start for part in slices))
    return parts


def _writes(tensor: Tensor, number: int, rank: int, size: int) -> bool:
    if not isinstance(tensor, DTensor):
        return number % size == rank
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    copies = [axis for axis, placement in enumerate(tensor.placements) if isinstance(placement, Replicate)]
    # Tensor-parallel neighbours have equal copies of unsplit parameters, each on its own mesh, which starts at its rank in the group.
    twins = size // mesh.size()
    return number % twins == int(mesh.mesh.min()) and all(number % mesh.size(axis) == coordinate[axis] for axis in copies)


def is_finite(value: Tensor) -> bool:
    """Return whether a tensor contains no NaN or Inf; needs no temporary memory."""
    if not value.is_floating_point() or not value.numel():
        return True
    low, high = torch.aminmax(value)  # a NaN anywhere makes both NaN
    return bool(torch.isfinite(low) and torch.isfinite(high))


@dataclass(frozen=True)
class TensorEntry:
    """Name, type and shape of a tensor of a file that is streamed."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class WrittenShard:
    """Sizes and SHA-256 digests (hex) of one rank's file, and of its beginning up to the optimizer's moments."""

    bytes: int
    digest: str
    weights_bytes: int
    weights_digest: str


def write_shard(path: Path, parts: Mapping[str, TensorShard]) -> WrittenShard:
    """Stream one rank's parts into a safetensors file: the optimizer's moments last, since only a resumed run reads them."""
    ordered = dict(sorted(parts.items(), key=lambda part: is_moment(part[0])))
    offsets = json.dumps({name: {"saved_offsets": part.offset} for name, part in ordered.items()})
    entries = [TensorEntry(name, part.value.dtype, tuple(part.value.shape)) for name, part in ordered.items()]
    header = _encode_header(entries, {OFFSETS_KEY: offsets})
    front = len(header) + sum(entry.bytes for entry in entries if not is_moment(entry.name))
    written = _write_values(path, header, entries, (part.value for part in ordered.values()), front)
    assert written.front_digest is not None
    return WrittenShard(written.bytes, written.digest, front, written.front_digest)


def is_moment(name: str) -> bool:
    """True for the name of an optimizer's moment (`checkpoint.training_tensors`)."""
    return name.startswith("optimizer.")


def write_stream(path: Path, entries: Sequence[TensorEntry], values: Iterable[Tensor], metadata: dict[str, str]) -> files.Written:
    """Write a safetensors file from a stream of values: those of all `entries` in order, each in one or several blocks."""
    return _write_values(path, _encode_header(entries, metadata), entries, values, None)


def _encode_header(entries: Sequence[TensorEntry], metadata: dict[str, str]) -> bytes:
    """The beginning of a safetensors file.

    Format: 8 bytes of header length, a JSON header, then the raw values (huggingface/safetensors, README "Format").
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    end = 0
    for entry in entries:
        start, end = end, end + entry.bytes
        header[entry.name] = {"dtype": DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_values(path: Path, header: bytes, entries: Sequence[TensorEntry], values: Iterable[Tensor], front: int | None) -> files.Written:
    written = files.write_blocks(path, itertools.chain([header], (_bytes(value) for value in values)), front)
    expected = sum(entry.bytes for entry in entries)
    if written.bytes != len(header) + expected:
        raise RuntimeError(f"{path}: {written.bytes - len(header)} bytes of values were written, the header says {expected}")
    return written


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True)
class _Piece:
    file: Path
    offset: tuple[int, ...]
    shape: tuple[int, ...]


@contextlib.contextmanager
def open_shards(folder: Path) -> Iterator[tuple[Reader, dict[str, tuple[int, ...]]]]:
    """A reader for all ranks' files of a checkpoint, and the full shape of each tensor. Any slice can be read on any number of ranks.

    Raises `UserError` for files that are not such shards, or if some are missing.
    """
    with contextlib.ExitStack() as stack:
        handles: dict[Path, Any] = {}
        pieces: dict[str, list[_Piece]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                input_files.require_regular(path)
                handles[path] = stack.enter_context(safe_open(path, framework="pt"))
                for name, piece in _pieces_in(path, handles[path]).items():
                    pieces.setdefault(name, []).append(piece)
            except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserError(f"{path} is not a checkpoint shard ({type(error).__name__}: {error}); choose another checkpoint") from None
        shapes = {name: _infer_full_shape(folder, name, of_name) for name, of_name in pieces.items()}

        def read(name: str, slices: tuple[slice, ...] | None) -> Tensor:
            wanted = slices if slices is not None else tuple(slice(0, size) for size in shapes[name])
            found = [(piece, _overlap(piece, wanted)) for piece in pieces[name]]
            parts = [(piece, box) for piece, box in found if box is not None]
            if len(parts) == 1 and slices is None:
                return handles[parts[0][0].file].get_tensor(name)
            result = None
            for piece, box in parts:
                values = handles[piece.file].get_slice(name)[
                    tuple(_shift(part, start) for part, start in zip(box, piece.offset, strict=True))
                ]
                result = result if result is not None else torch.empty([part.stop - part.start for part in wanted], dtype=values.dtype)
                result[tuple(_shift(part, want.start) for part, want in zip(box, wanted, strict=True))] = values
            return result if result is not None else torch.empty([max(0, part.stop - part.start) for part in wanted])

        yield read, shapes


def _pieces_in(path: Path, handle: WeightsFile) -> dict[str, _Piece]:
    """The shards in one rank's file. Raises `ValueError`, `KeyError` or `TypeError` if their offsets are missing or invalid."""
    offsets, found = json.loads((handle.metadata() or {})[OFFSETS_KEY]), {}
    for name in handle.keys():  # noqa: SIM118 - a safetensors handle is no mapping
        offset, shape = tuple(offsets[name]["saved_offsets"]), tuple(handle.get_slice(name).get_shape())
        if len(offset) != len(shape) or not all(type(start) is int and start >= 0 for start in offset):
            raise ValueError(f"{name} of shape {shape} would begin at {offset}")
        found[name] = _Piece(path, offset, shape)
    return found


def _infer_full_shape(folder: Path, name: str, pieces: list[_Piece]) -> tuple[int, ...]:
    """Full shape of a tensor. Raises `UserError` if shards are missing."""
    if len({len(piece.shape) for piece in pieces}) == 1:
        whole = tuple(max(piece.offset[axis] + piece.shape[axis] for piece in pieces) for axis in range(len(pieces[0].shape)))
        if sum(math.prod(piece.shape) for piece in pieces) == math.prod(whole):
            return whole
    raise UserError(f"{folder}: shards of {name} are incomplete, so a rank's file is missing or of another run; choose another checkpoint")


def _overlap(piece: _Piece, wanted: tuple[slice, ...]) -> tuple[slice, ...] | None:
    box = tuple(
        slice(max(start, want.start), min(start + size, want.stop))
        for start, size, want in zip(piece.offset, piece.shape, wanted, strict=True)
    )
    return box if all(part.start < part.stop for part in box) else None


def _shift(part: slice, by: int) -> slice:
    return slice(part.start - by, part.stop - by)
