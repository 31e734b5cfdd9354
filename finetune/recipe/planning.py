"""Inputs that `plan` and docs/models.md need from a recipe: a model's shape without its weights, and the released models that it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from pydantic import JsonValue

from overtone.finetune.recipe.loaded_model import Loaded
from overtone.finetune.recipe.samples import Batch, ProcessorT


@dataclass(frozen=True)
class Sketch(Generic[ProcessorT]):
    """A base as `overtone plan` needs it: made from its config.json, without weights or data."""

    loaded: Loaded
    """The result of `load`, without a processor."""
    batch: Callable[[int, int], Batch]
    """(samples, positions of each) → a micro-batch, packed if the config says so, that is learned at every position it can be."""
    processor: Callable[[], ProcessorT]
    """Makes the processor that `read` needs from the base's small files alone; raises `UserError` if one is missing or does not fit the
    model."""


@dataclass(frozen=True)
class ReleasedModel:
    """A published model that a recipe trains: a row of docs/models.md. Everything else in the row is computed from it."""

    name: str
    """On the hub, with its owner: Qwen/Qwen3-8B."""
    licence: str
    """Licence as its model card on the hub names it: apache-2.0."""
    languages: str
    """Languages as its makers list them, short enough for a table: English; 10 languages."""
    config: Mapping[str, JsonValue]
    """Its config.json, at least the keys that determine the shapes."""
    streaming: bool = False
    """True if its inference here returns the beginning of an answer before the end is generated."""
    files: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    """Other JSON files of its folder that `sketch` reads, by path."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Keys and values of the config that this model needs beside the recipe's config.yaml."""
