"""Differences between two configurations, key by key, and their effect on training: none, rounding only, or any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pydantic import JsonValue


NO_NUMBER: Final = "changes no number of the training"
Effect = Literal["", "by rounding alone", "changes no number of the training"]
EFFECTS: Final[tuple[Effect, ...]] = ("", "by rounding alone", NO_NUMBER)
"""In the order in which they are shown."""

ABSENT = "not there"
ROUNDING = ("parallel.", "train.compile", "train.activation_checkpointing", "launch.")
"""Prefixes of keys that affect only where, or in which order, the same sums are computed."""
NEUTRAL = (
    *("launch.validation_data", "launch.samples", "run.dir", "run.deadline_minutes", "checkpoint.", "eval.", "sample.", "log."),
    *("model.source", "model.revision", "data.train", "data.mix", "data.val"),
)
"""Prefixes of keys that affect only what is kept, measured and logged; and paths of files whose content is compared by digest."""


@dataclass(frozen=True)
class Change:
    """A key with another value."""

    key: str
    was: JsonValue
    now: JsonValue

    @property
    def effect(self) -> Effect:
        """Effect on the results of training; empty for a key that can change them in any way."""
        if self.key.startswith(NEUTRAL):
            return NO_NUMBER
        return "by rounding alone" if self.key.startswith(ROUNDING) else ""

    def __str__(self) -> str:
        return f"{self.key}: {_format_value(self.was)} → {_format_value(self.now)}{f' ({self.effect})' if self.effect else ''}"


def flatten(values: Mapping[str, JsonValue], prefix: str = "") -> dict[str, JsonValue]:
    """Dotted key → value, for nested mappings; lists and empty mappings count as values."""
    flat: dict[str, JsonValue] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        flat |= flatten(value, f"{key}.") if isinstance(value, Mapping) and value else {key: value}
    return flat


def find_changes(was: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> list[Change]:
    """Changes between two nested configurations: first those with any effect on the results, then those that affect rounding only, then
    those without effect, each in the order of the keys."""
    old, new = flatten(was), flatten(now)
    old = {key: value for key, value in old.items() if value != {} or not any(name.startswith(f"{key}.") for name in new)}
    found = [Change(key, old.get(key, ABSENT), new.get(key, ABSENT)) for key in [*new, *(key for key in old if key not in new)]]
    return sorted((each for each in found if each.was != each.now), key=lambda each: EFFECTS.index(each.effect))


def _format_value(value: JsonValue) -> str:
    """A value for a message; null, true and false as in YAML."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
