"""How codes are sampled: by the settings of a request, else by those of the model, else by those of the stock package.

A model has its settings in `generation_config.json`, under the stock package's names. The talker, which predicts codebook 0, has the plain
names; the code predictor, which predicts the other 15, has them with the prefix `subtalker_`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.errors import UserError
from finetune.storage.model_security import read_object

from .model_configs import FRAME_RATE

if TYPE_CHECKING:
    from .token_sampling import FrameSampler

CONFIG = "generation_config.json"
STOCK: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
}
"""Defaults of the stock package."""
SHAPED_BY = {
    "do_sample": ("temperature", "top_k", "top_p"),
    "subtalker_dosample": ("subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
}
"""The switch that turns sampling on for the talker and for the predictor → the settings that shape it."""
VALID: dict[str, Callable[[Any], bool]] = {
    "sample": lambda value: isinstance(value, bool),
    "temperature": lambda value: value > 0,
    "top_k": lambda value: type(value) is int and value >= 0,
    "top_p": lambda value: 0 < value <= 1,
    "repetition_penalty": lambda value: value > 0,
}
"""End of a setting's name → check of its value."""


@dataclass(frozen=True)
class SamplingSettings:
    """Settings of a request; None means the model's own. Setting a temperature, top-k or top-p turns sampling on.

    `greedy` takes the most likely code of both models, without the repetition penalty, which would move it away from learned codes. Except
    for `max_seconds`, all other settings are then ignored.
    """

    greedy: bool = False
    temperature: float | None = None
    top_k: int | None = None
    """0: all."""
    top_p: float | None = None
    repetition_penalty: float | None = None
    subtalker_temperature: float | None = None
    subtalker_top_k: int | None = None
    subtalker_top_p: float | None = None
    seed: int = 0
    max_seconds: float = 60.0
    """Speech is cut off here if the model has not ended it."""

    @property
    def max_frames(self) -> int:
        """`max_seconds` in frames, rounded up."""
        return math.ceil(self.max_seconds * FRAME_RATE)

    def make_sampler(self, model_settings: Mapping[str, Any]) -> FrameSampler:
        """The sampler for a model with the settings `model_settings` (see `read_model_settings`)."""
        from .token_sampling import GREEDY, CodeSampler, FrameSampler

        if self.greedy:
            return GREEDY
        requested = {name: value for name in STOCK if (value := getattr(self, name, None)) is not None}
        switched_on = {switch: True for switch, names in SHAPED_BY.items() if requested.keys() & set(names)}
        use = {**STOCK, **model_settings, **requested, **switched_on}
        first, others = (CodeSampler(not use[switch], *(use[name] for name in names)) for switch, names in SHAPED_BY.items())
        return FrameSampler(replace(first, repetition_penalty=use["repetition_penalty"]), others)


def read_model_settings(folder: Path) -> dict[str, Any]:
    """The sampling settings in the model's folder; empty if it has none. Raises `UserError` for invalid values."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    defaults = read_object(path)
    found = {name: defaults[name] for name in STOCK if defaults.get(name) is not None}
    for name, value in found.items():
        if not is_valid(name, value):
            raise UserError(f"{path}: {name} {value!r} is out of range; the stock package uses {STOCK[name]!r}")
    return found


def is_valid(name: str, value: Any) -> bool:
    """Whether a setting can have this value."""
    (check,) = (check for end, check in VALID.items() if name.endswith(end))
    try:
        return check(value)
    except TypeError:
        return False
