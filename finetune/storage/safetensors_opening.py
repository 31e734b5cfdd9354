"""Opens safetensors files: one that is damaged, or whose header contradicts itself, is a `UserError` with its path. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from safetensors import SafetensorError, safe_open

from overtone.finetune.errors import UserError
from overtone.finetune.storage import input_files

if TYPE_CHECKING:
    from torch import Tensor


class TensorSlice(Protocol):
    """A tensor in a file, of which slices can be read."""

    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...

    def __getitem__(self, slices: tuple[slice, ...]) -> Tensor: ...


class WeightsFile(Protocol):
    """An open safetensors file."""

    def keys(self) -> list[str]: ...

    def metadata(self) -> dict[str, str] | None: ...

    def get_tensor(self, name: str) -> Tensor: ...

    def get_slice(self, name: str) -> TensorSlice: ...


@contextmanager
def open_weights(path: Path) -> Iterator[WeightsFile]:
    """A safetensors file whose tensors torch gets. Raises `UserError` if it is damaged, also when a tensor is read while it is open."""
    damaged = f"{path} cannot be read ({{}}); download the model again"
    try:
        input_files.require_regular(path)
        opened = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise UserError(damaged.format(error)) from error
    with opened as file:
        try:
            yield file
        except SafetensorError as error:  # no OSError: it may be of something else that is done while the file is open
            raise UserError(damaged.format(error)) from error
