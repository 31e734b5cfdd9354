"""Applies rules to the keys of a foreign file: the input of a rule, and the outcome of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from overtone.finetune.errors import UserError

if TYPE_CHECKING:
    from pydantic import JsonValue

Kind = Literal["mapped", "not needed", "not there", "unknown"]
KINDS: tuple[Kind, ...] = ("mapped", "not needed", "not there", "unknown")

AUTO = "auto"
"""Value that transformers' Trainer replaces by one of its own arguments."""


@dataclass(frozen=True)
class KeyOutcome:
    """The outcome of a key."""

    kind: Kind
    text: str
    """The reason or the consequence, as a phrase."""
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """Config keys that it sets."""
    launch: Mapping[str, JsonValue] = field(default_factory=dict)
    """Keys of the launch file that it sets."""


@dataclass(frozen=True)
class Given:
    """Everything that the rule of one key may look at."""

    values: Mapping[str, JsonValue]
    """Dotted key → value, of the whole file."""
    processes: int | None = None
    """Number of ranks; None: one for each GPU."""
    machines: int = 1
    sequence_length: int | None = None
    """Positions of a sample, by which numbers of samples become numbers of positions."""
    steps: int | None = None
    """Optimizer steps of the whole training."""

    def number(self, key: str) -> float | None:
        """Return the value of a key if it is a number."""
        value = self.values.get(key)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def is_on(self, key: str) -> bool:
        return self.values.get(key) is True


Rule: TypeAlias = "KeyOutcome | Callable[[JsonValue, Given], KeyOutcome]"
Rules = Mapping[str, Rule]
"""Dotted key, or `section.*` for all keys under one, → rule."""


@dataclass(frozen=True)
class KeyLine:
    """One key of a foreign file with its outcome."""

    key: str
    value: JsonValue
    outcome: KeyOutcome


def flatten_keys(values: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """(dotted key, value) of everything that is not a section; lists and empty sections are values."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten_keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def apply_rules(rules: Rules, given: Given) -> list[KeyLine]:
    """Return one line for each key, in the order of the file; a key without a rule is `unknown`."""
    return [KeyLine(key, value, judge(rules, key, value, given)) for key, value in given.values.items()]


def judge(rules: Rules, key: str, value: JsonValue, given: Given) -> KeyOutcome:
    """Return the outcome of one key. Raises `UserError` for a value that the key cannot have."""
    parts = key.split(".")
    sections = (".".join([*parts[:length], "*"]) for length in range(len(parts) - 1, 0, -1))  # `a.b.c` → `a.b.*`, `a.*`
    rule = rules.get(key) or next((rules[name] for name in sections if name in rules), None)
    if rule is None:
        return KeyOutcome("unknown", "no such key is known here; look up what it does before you leave it out")
    try:
        return rule if isinstance(rule, KeyOutcome) else rule(value, given)
    except (TypeError, ValueError, OverflowError):  # rules compute with values
        raise UserError(f"{key}: {shorten_value(format_value(value))} is not a valid value of this key; correct it in the file") from None


def parse_number(value: JsonValue) -> float:
    """Return a number, or a text with one. Raises `TypeError` or `ValueError` for anything else."""
    if not isinstance(value, int | float | str):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def sets(key: str, value: JsonValue, text: str = "") -> KeyOutcome:
    """Return a key that becomes the config key `key`."""
    return KeyOutcome("mapped", f"{key}: {format_value(value)}{f' ({text})' if text else ''}", {key: value})


def not_needed(text: str) -> KeyOutcome:
    return KeyOutcome("not needed", text)


def not_there(text: str) -> KeyOutcome:
    return KeyOutcome("not there", text)


def unless_auto(key: str, rule: Callable[[JsonValue, Given], KeyOutcome]) -> Callable[[JsonValue, Given], KeyOutcome]:
    """Return a rule for values other than `auto`, which leaves the config key at the recipe's default."""

    def decide(value: JsonValue, given: Given) -> KeyOutcome:
        return not_needed(f"auto was filled in by the Trainer; set {key} instead of its argument") if value == AUTO else rule(value, given)

    return decide


def if_on(text: str) -> Callable[[JsonValue, Given], KeyOutcome]:
    """Return a rule for a switch without a counterpart: `not there` if it is on."""
    return lambda value, _: not_needed("it is off") if value in (False, None, 0, "none", "no", AUTO, [], {}) else not_there(text)


def expect(here: JsonValue, absent: str) -> Rule:
    """For a key that has no counterpart and needs none while it says what is done here anyway; with another value it is `not there`."""
    return lambda value, _: not_needed("that is how it is here") if value in (here, AUTO) else not_there(absent)


def shorten_value(text: str) -> str:
    """Return a value that fits on a line with its key."""
    return text if len(text) < 60 else f"{text[:57]}…"


def format_value(value: JsonValue) -> str:
    """Return a value as YAML and the command line write it."""
    return {True: "true", False: "false", None: "null"}[value] if value is None or isinstance(value, bool) else str(value)
