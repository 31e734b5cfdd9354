"""Search space of a study: a YAML file that gives config keys a distribution, or a list of values.

    train:
      lr: {loguniform: [1e-6, 1e-4]}
      warmup: {uniform: [0, 0.1]}
    model.lora.rank: {choice: [8, 16, 32]}
    run.seed: {grid: [0, 1, 2]}

The names are those of Ray Tune. Each draw is a function of the study's seed, the number of the trial and the key, so that neither the
order in which trials run nor the number of trials changes one of them.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue

from overtone.finetune.config import Config, expand_lora_switch, make_config_class, resolve_sources
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.config_sources import ConfigSource, read_config_file
from overtone.finetune.errors import UserError

LISTS = ("choice", "grid")
RANGES = ("uniform", "loguniform", "randint")
DISTRIBUTIONS = (*LISTS, *RANGES)
EXAMPLES = {
    "choice": "{choice: [8, 16, 32]}",
    "grid": "{grid: [8, 16, 32]}",
    "uniform": "{uniform: [0.0, 0.1]}",
    "loguniform": "{loguniform: [1e-6, 1e-4]}",
    "randint": "{randint: [1, 5]}, which is 1, 2, 3 or 4",
}
RESERVED = {
    "recipe": "all trials of a study train the same recipe",
    "run.dir": "each trial has a folder of its own inside of --run.dir",
    "checkpoint.copy_to": "the trials would share one URL; copy the best run when the study is done",
}
"""Keys that a space may not have → why."""
DIGITS = 6
"""Significant digits of a drawn number: enough for any hyperparameter, and short in a command line."""


@dataclass(frozen=True)
class Dimension:
    """One key of a search space."""

    key: str
    """Dotted config key."""
    distribution: str
    """One of `DISTRIBUTIONS`."""
    values: tuple[Any, ...]
    """The values of a list, or both ends of a range (`randint`: the second end is not drawn)."""
    place: str
    """`file:line`."""


Space = tuple[Dimension, ...]


@dataclass(frozen=True)
class Draw:
    """The settings of one trial."""

    number: int
    """Counts the draws from 0; stays the same if more are added."""
    values: dict[str, JsonValue]
    """Dotted key → value."""


def read_space(path: Path, options: type[BaseModel]) -> Space:
    """Return the dimensions of a space file, in its order. `options`: of the recipe. Raises `UserError` with file and line for an invalid
    space.

    The values are checked by `check_values`.
    """
    if not path.is_file():
        raise UserError(f"--space {path}: no such file; write one with a line such as `train.lr: {EXAMPLES['loguniform']}`")
    source = read_config_file(path)
    leaves = {key for key, *_ in fields(make_config_class(options))}
    space = tuple(_walk(source.values, "", source.origins, "", leaves))
    if not space:
        raise UserError(f"--space {path} has no keys; write for example `train.lr: {EXAMPLES['loguniform']}`")
    seen = set[str]()
    for dimension in space:  # different keys of YAML
        if dimension.key in seen:
            raise UserError(f"{dimension.place}: {dimension.key} is set twice, with dots and in its section; remove one of them")
        seen.add(dimension.key)
    return space


def _walk(values: dict[str, JsonValue], prefix: str, origins: dict[str, str], inside: str, leaves: set[str]) -> Iterator[Dimension]:
    """The dimensions in a section. `prefix`: its config key and a dot. `inside`: the same as `origins` spells it."""
    for name, value in values.items():
        key, place = f"{prefix}{name}", origins[f"{inside}{name}"]
        if isinstance(value, dict) and not set(value) & set(DISTRIBUTIONS) and key not in leaves and value:
            yield from _walk(value, f"{key}.", origins, f"{inside}{name}.", leaves)
        else:
            yield _make_dimension(key, value, place)


def _make_dimension(key: str, value: Any, place: str) -> Dimension:
    if key in RESERVED:
        raise UserError(f"{place}: {key} cannot be tuned: {RESERVED[key]}; remove it")
    known = ", ".join(DISTRIBUTIONS)
    if value is None:
        raise UserError(f"{place}: {key} has no value; expected one of {known}, as in `train.lr: {EXAMPLES['loguniform']}`, or remove it")
    if not isinstance(value, dict) or len(value) != 1:
        word = key.rpartition(".")[2]
        near = [] if isinstance(value, dict) else difflib.get_close_matches(word, DISTRIBUTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {known}, as in `{key}: {EXAMPLES['choice']}`"
        fixed = "" if near or isinstance(value, dict | list) else f"; a fixed value is set by --{key} {value}"
        raise UserError(f"{place}: {key} = {value!r} is no distribution; {hint}{fixed}")
    ((distribution, given),) = value.items()
    if distribution not in DISTRIBUTIONS:
        near = difflib.get_close_matches(distribution, DISTRIBUTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the distributions are {known}"
        raise UserError(f"{place}: {key}: unknown distribution {distribution}; {hint}")
    problem = _find_problem(distribution, given)
    if problem is not None:
        raise UserError(f"{place}: {key}: {distribution} {given!r}: {problem}; expected for example {EXAMPLES[distribution]}")
    return Dimension(key, distribution, tuple(given), place)


def _find_problem(distribution: str, given: Any) -> str | None:
    """Return why these are not the values of the distribution; None if they are."""
    if not isinstance(given, list) or not given:
        return "not a list of values"
    if distribution in LISTS:
        repeated = len({json.dumps(value, sort_keys=True) for value in given}) < len(given)
        return "a value is listed twice" if repeated else None
    kinds = (int,) if distribution == "randint" else (int, float)
    if len(given) != 2 or not all(type(end) in kinds and math.isfinite(end) for end in given):
        return f"not two {'whole ' if distribution == 'randint' else ''}numbers"
    if given[0] >= given[1]:
        return "the first number must be less than the second"
    if distribution == "loguniform" and given[0] <= 0:
        return "the ends of a logarithmic range must be above 0"
    return None


def check_values(space: Space, recipe: str, options: type[BaseModel], sources: list[ConfigSource]) -> None:
    """Raises `UserError` for a key that does not exist, and for a value, or an end of a range, that the key refuses; with its place.

    `sources`: those of the config, without the space. A key of the command line may not be in the space too.
    """
    flags = {place.removeprefix("--"): place for source in sources for place in source.origins.values() if place.startswith("--")}
    for dimension in space:
        if dimension.key in flags:
            raise UserError(f"{dimension.place}: {dimension.key} is also set by {flags[dimension.key]}; remove one of them")
        for value in list_ends(dimension):
            resolve_sources(recipe, options, [*sources, make_source({dimension.key: value}, space)])


def list_ends(dimension: Dimension) -> tuple[JsonValue, ...]:
    """Return the values of a list, or the least and the largest value that a range can give."""
    if dimension.distribution in LISTS:
        return dimension.values
    if dimension.distribution == "randint":
        return (dimension.values[0], dimension.values[1] - 1)
    return tuple(map(float, dimension.values))


def make_source(values: dict[str, JsonValue], space: Space) -> ConfigSource:
    """Return the settings of a trial as a config source whose errors name the place in the space file."""
    nested: dict[str, Any] = {}
    for key in sorted(values):  # model.lora before model.lora.rank
        *sections, name = key.split(".")
        section = nested
        for part in sections:
            if not isinstance(section.get(part), dict):
                section[part] = {}
            section = section[part]
        section[name] = values[key]
    source = ConfigSource(nested, {dimension.key: dimension.place for dimension in space if dimension.key in values}, from_file=True)
    expand_lora_switch(source)
    return source


def resolve_draw(draw: Draw, space: Space, recipe: str, options: type[BaseModel], sources: list[ConfigSource]) -> Config:
    """Return the config of a trial. Raises `UserError` for values that do not fit together."""
    try:
        return resolve_sources(recipe, options, [*sources, make_source(draw.values, space)])
    except UserError as error:
        raise UserError(f"trial {draw.number} ({describe_values(draw.values)}): {error}") from None


def describe_values(values: dict[str, JsonValue]) -> str:
    """`train.lr 1e-05, model.lora.rank 8`."""
    return ", ".join(f"{key} {format_value(value)}" for key, value in values.items())


def format_value(value: object) -> str:
    """Return a value as YAML on one line, as a flag takes it."""
    return json.dumps(value)


def draw_trials(space: Space, seed: int, samples: int) -> list[Draw]:
    """`samples` draws for each combination of the grid values, without draws that repeat an earlier one's settings.

    The number of draws for each combination can grow: the earlier trials stay as they are.
    """
    grids = [dimension for dimension in space if dimension.distribution == "grid"]
    combinations = list(itertools.product(*(dimension.values for dimension in grids)))
    draws, seen = list[Draw](), set[str]()
    for number in range(samples * len(combinations)):
        fixed = dict(zip((grid.key for grid in grids), combinations[number % len(combinations)], strict=True))
        values = {each.key: fixed.get(each.key) if each in grids else draw_value(each, seed, number) for each in space}
        if (key := json.dumps(values, sort_keys=True)) not in seen:
            seen.add(key)
            draws.append(Draw(number, values))
    return draws


def draw_value(dimension: Dimension, seed: int, number: int) -> JsonValue:
    """Return the value of a key in trial `number`."""
    digest = hashlib.sha256(json.dumps([seed, number, dimension.key]).encode()).digest()
    uniform = (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53  # in [0, 1), with all 53 bits of a double
    if dimension.distribution == "choice":
        return dimension.values[int(uniform * len(dimension.values))]
    low, high = dimension.values
    if dimension.distribution == "randint":
        return low + int(uniform * (high - low))
    if dimension.distribution == "loguniform":
        value = math.exp(math.log(low) + uniform * (math.log(high) - math.log(low)))
    else:
        value = low + uniform * (high - low)
    return min(max(float(f"{value:.{DIGITS}g}"), float(low)), float(high))


def count_combinations(space: Space) -> int:
    """Return the number of combinations of the grid values."""
    return math.prod(len(dimension.values) for dimension in space if dimension.distribution == "grid")
