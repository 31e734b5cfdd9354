"""How codes are chosen: as asked, else as the model says of itself, else as the stock package does.

A model says it in `generation_config.json`, under the stock package's names: those of the talker, which chooses codebook 0, and with
`subtalker_` before them those of the code predictor, which chooses the 15 others.
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
    from .token_sampling import Choices

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
"""The stock package's own defaults."""
SHAPED_BY = {
    "do_sample": ("temperature", "top_k", "top_p"),
    "subtalker_dosample": ("subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
}
"""Whether a level samples, and what then shapes it."""
SOUND: dict[str, Callable[[Any], bool]] = {
    "sample": lambda value: isinstance(value, bool),
    "temperature": lambda value: value > 0,
    "top_k": lambda value: type(value) is int and value >= 0,
    "top_p": lambda value: 0 < value <= 1,
    "repetition_penalty": lambda value: value > 0,
}
"""What a value must be, by the end of its name."""


@dataclass(frozen=True)
class Sampling:
    """What is asked; None: as the model says. A temperature, top-k or top-p that is asked for asks for sampling.

    `greedy` takes the most likely code at both levels, without the penalty on repetition, which would push it off the codes that were
    learned; it ignores all but `max_seconds`.
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
    """Speech is cut off there if the model does not end by itself."""

    @property
    def most_frames(self) -> int:
        return math.ceil(self.max_seconds * FRAME_RATE)

    def choices(self, own: Mapping[str, Any]) -> Choices:
        """For a model that says `own` of itself."""
        from .token_sampling import GREEDY, Choice, Choices

        if self.greedy:
            return GREEDY
        asked = {name: value for name in STOCK if (value := getattr(self, name, None)) is not None}
        sampled = {switch: True for switch, names in SHAPED_BY.items() if asked.keys() & set(names)}
        use = {**STOCK, **own, **asked, **sampled}
        first, others = (Choice(not use[switch], *(use[name] for name in names)) for switch, names in SHAPED_BY.items())
        return Choices(replace(first, repetition_penalty=use["repetition_penalty"]), others)


def own(folder: Path) -> dict[str, Any]:
    """What the model in `folder` says of itself; nothing, if it has no such file. Raises `UserError` for what no sampling can do."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    defaults = read_object(path)
    said = {name: defaults[name] for name in STOCK if defaults.get(name) is not None}
    for name, value in said.items():
        if not sound(name, value):
            raise UserError(f"{path}: {name} {value!r} is out of its range; the stock package's is {STOCK[name]!r}")
    return said


def sound(name: str, value: Any) -> bool:
    """Whether a setting can have that value."""
    (of_its_kind,) = (check for end, check in SOUND.items() if name.endswith(end))
    try:
        return of_its_kind(value)
    except TypeError:
        return False
