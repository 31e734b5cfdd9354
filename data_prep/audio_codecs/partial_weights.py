"""Reads one part of a model, such as its codec, from safetensors files; the weights of the other parts are not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from finetune.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def open_weights(path: Path) -> Iterator[Any]:
    """A safetensors file. Raises `UserError` if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}); fetch the model again") from error


def read_partial_weights(paths: Iterable[Path], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by their names without it. Raises `UserError` for a damaged file."""
    found: dict[str, Tensor] = {}
    for path in paths:
        with open_weights(path) as file:
            found |= {name.removeprefix(prefix): file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
    return found
