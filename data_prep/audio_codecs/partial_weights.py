"""Reads one part of a model, such as its codec, from safetensors files; the weights of the other parts are not read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from overtone.finetune.storage.safetensors_opening import open_weights

if TYPE_CHECKING:
    from torch import Tensor


def read_partial_weights(paths: Iterable[Path], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, by their names without it. Raises `UserError` for a damaged file."""
    found: dict[str, Tensor] = {}
    for path in paths:
        with open_weights(path) as file:
            found |= {name.removeprefix(prefix): file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
    return found
