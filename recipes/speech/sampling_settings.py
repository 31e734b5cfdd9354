"""Sampling settings of speech models: those of a request, else those of the model's folder, else those of the family's stock package.

A recipe names its settings in a `SamplingScheme`. A model has them in `generation_config.json`. Must not import torch: `--help` reads this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue

from overtone.finetune.errors import UserError
from overtone.finetune.storage.model_security import read_object

from .interface import SpeechSampling

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

CONFIG = "generation_config.json"
Extended = TypeVar("Extended", bound=SpeechSampling)
VALID: dict[str, Callable[[Any], bool]] = {
    "sample": lambda value: isinstance(value, bool),
    "temperature": lambda value: value > 0,
    "top_k": lambda value: type(value) is int and value >= 0,
    "top_p": lambda value: 0 < value <= 1,
    "repetition_penalty": lambda value: value > 0,
    "batch": lambda value: value >= 1,
    "seed": lambda value: value >= 0,
    "max_seconds": lambda value: 0 < value < float("inf"),
}
"""End of a setting's name → check of its value."""


@dataclass(frozen=True)
class SamplingScheme:
    """The sampling settings of a family of models."""

    stock: Mapping[str, Any]
    """Name → default of the stock package. A name ends with one of `VALID`."""
    shaped_by: Mapping[str, tuple[str, ...]]
    """The switch that turns sampling on → the settings that shape it. A request that has one of them turns sampling on."""
    help: Mapping[str, str]
    """Settings with an option on the command line → help."""

    def read_model_settings(self, folder: Path) -> dict[str, Any]:
        """The settings in the model's folder; empty if it has none. Raises `UserError` for invalid values."""
        path = folder / CONFIG
        if not path.is_file():
            return {}
        defaults = read_object(path)
        found = {name: defaults[name] for name in self.stock if defaults.get(name) is not None}
        for name, value in found.items():
            if not is_valid(name, value):
                raise UserError(f"{path}: {name} {value!r} is out of range; the stock package uses {self.stock[name]!r}")
        return found

    def resolve(self, model_settings: Mapping[str, Any], requested: SpeechSampling) -> dict[str, Any]:
        """Every setting of `stock`, by the first that has it of: the request, the model, the stock package."""
        own = {name: value for name in self.stock if (value := getattr(requested, name, None)) is not None}
        switched_on = {switch: True for switch, names in self.shaped_by.items() if own.keys() & set(names)}
        return {**self.stock, **model_settings, **own, **switched_on}

    def add_options(self, group: _ArgumentGroup) -> None:
        """The options of the command line, in a group of an `argparse` parser."""
        for name, text in self.help.items():
            kind = int if name.endswith("top_k") else float
            default = f"(default: from the model's {CONFIG}, else {self.stock[name]})"
            group.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"{text} {default}")


def check_numbers(settings: Mapping[str, Any]) -> None:
    """Raises `UserError` for a number out of range. `settings`: those of a scheme, and those that every speech model has, by name."""
    for name, value in settings.items():
        if not is_valid(name, value):
            hint = "; --greedy always takes the most likely code" if name.endswith("temperature") else ""
            shown = f"{value:g}" if isinstance(value, int | float) else repr(value)
            raise UserError(f"--{name.replace('_', '-')} {shown} is out of range{hint}")


def extend_sampling(sampling: SpeechSampling, kind: type[Extended]) -> Extended:
    """The settings of a request as those of a recipe; what only the recipe has is the model's own."""
    if isinstance(sampling, kind):
        return sampling
    return kind(**{field.name: getattr(sampling, field.name) for field in fields(SpeechSampling)})


def is_valid(name: str, value: JsonValue) -> bool:
    """Return whether a setting can have this value."""
    (check,) = (check for end, check in VALID.items() if name.endswith(end))
    try:
        return check(value)
    except TypeError:
        return False
