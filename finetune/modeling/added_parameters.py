"""Parameters that the base lacks, such as a classification head (`Loaded.added`): initialized by seed, and trained beside adapters too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from overtone.finetune.errors import UserError

Initializer = Callable[[torch.Generator, torch.Size], Tensor]
"""(CPU generator, shape of the whole parameter) → its initial value."""


def make_generator(seed: int, name: str) -> torch.Generator:
    """Return a CPU generator for one parameter: its values do not depend on ranks, sharding, or other parameters."""
    key = int.from_bytes(hashlib.sha256(json.dumps([seed, name]).encode()).digest()[:8], "big") % 2**63
    return torch.Generator().manual_seed(key)


def initialize(name: str, shape: torch.Size, seed: int, initializer: Initializer) -> Tensor:
    """Initial value of a whole parameter, on the CPU. Raises `UserError` if the recipe's function returns another shape."""
    value = initializer(make_generator(seed, name), shape)
    if value.shape != shape:
        raise UserError(f"Loaded.added of the recipe returned {name} as {[*value.shape]}; the model has {[*shape]}")
    return value


def check_names(model: nn.Module, names: Iterable[str]) -> None:
    """Raises `UserError` for names that are not parameters of the model: they would be neither trained nor saved."""
    known = {name for name, _ in model.named_parameters()}
    if unknown := sorted(set(names) - known):
        raise UserError(
            f"Loaded.added of the recipe names {', '.join(unknown[:4])}, which the model does not have; "
            "give names of model.named_parameters()"
        )


def owning_modules(names: Iterable[str]) -> set[str]:
    """Return the names of the modules that own these parameters; they get no adapters, since all of their values are trained."""
    return {name.rpartition(".")[0] for name in names}
