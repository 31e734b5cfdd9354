"""The two JSON files of a checkpoint, `state.json` and `manifest.json`, read into types: what is wrong is named by its key.

Whoever reads one of them anywhere does it through here, so that no content of these files can end in a traceback: other types, missing
keys, numbers beyond any run, half characters, and values nested without an end.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from finetune.config import Lora
from finetune.errors import UserError

FORMAT = 1
LAST_STEP = 10**8 - 1
"""The name of a checkpoint's folder has eight digits."""
DEEPEST = 100
"""Levels of nesting that are read; what compares or writes values would meet Python's own limit at about ten times as many."""
SHOWN = 60
"""Characters of a wrong value."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
Steps = Annotated[int, Field(ge=0, le=LAST_STEP)]


class Part(BaseModel):
    """Of a file. Keys that this version does not know are kept: a later one of the same format may have added them."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Rows(Part):
    """The data file that a run trains on."""

    digest: str
    rows: Count
    positions: Count


class Base(Part):
    """The base model of a run."""

    source: str | None
    revision: str | None
    digest: str
    """SHA-256 over weights and config.json."""
    files: dict[str, str] | None = None
    """SHA-256 of each file that shapes a sample or the model, by its path in the base. None: saved before there was this key."""


class Place(Part):
    """`batches.Place`."""

    epoch: Count
    window: Count
    micro: Count


def _with_possible_rank(lora: Lora) -> Lora:
    if lora.rank >= 2**31:
        raise ValueError("no matrix has so high a rank")
    return lora


class State(Part):
    """`state.json`: where a run stood, and what it was made of."""

    format: int
    step: Steps
    recipe: str
    data: Rows
    base: Base
    order: dict[str, int | bool]
    lora: Annotated[Lora, AfterValidator(_with_possible_rank)] | None
    quantization: str | None
    optimizer: str = "adamw"
    """`train.optimizer`; checkpoints from before there was this key are of AdamW."""
    recipe_state: dict[str, Any]
    buffers: list[str]
    place: Place
    optimizer_steps: Steps
    skipped: Steps = 0
    recent: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = []
    validation_loss: float | None
    world: Annotated[int, Field(ge=1)]
    strategy: str
    device: str | None = None
    """cpu or cuda. None, as below: saved before there was this key."""
    validation: str | None = None
    """SHA-256 of the validation data."""


class Entry(Part):
    """A file of a checkpoint, as it was written."""

    bytes: Count
    digest: str


class Manifest(Part):
    """`manifest.json`."""

    format: int
    step: Steps
    files: dict[str, Entry]


def parse_json(data: bytes | str) -> Any:
    """As `json.loads`, but a `ValueError` is all that any content can raise."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("its values are nested without an end") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())]
        if not level:
            return value
    raise ValueError(f"its values are nested more than {DEEPEST} levels deep")


def parse_state(data: bytes | str) -> dict[str, Any]:
    """`state.json` with every key of `State`. Raises `ValueError` naming the first key that is wrong."""
    return _checked(State, parse_json(data))


def parse_manifest(content: dict[str, Any]) -> dict[str, Any]:
    """As `parse_state`, for the content of `manifest.json`."""
    return _checked(Manifest, content)


def check_recipe_state(model: type[BaseModel], state: dict[str, Any]) -> None:
    """Raises `UserError` if a recipe's own part of `state.json` lacks what that recipe exports by. `model`: what it must hold at least."""
    try:
        _checked(model, state)
    except ValueError as error:
        raise UserError(f"the checkpoint's state.json: recipe_state.{error}; it is not what this recipe writes") from None


def shown(value: Any) -> str:
    """A value from a file, for a message: as ASCII, and not longer than a line holds."""
    text = ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _checked(model: type[BaseModel], value: Any) -> dict[str, Any]:
    try:
        return model.model_validate(value).model_dump()
    except ValidationError as error:
        first, *more = error.errors(include_url=False)
        key = ".".join(str(part) for part in first["loc"]) or "the whole of it"
        found = "" if first["type"] == "missing" else f" (found {shown(first['input'])})"
        rest = f", and {len(more)} more" if more else ""
        raise ValueError(f"{shown(key)[1:-1]}: {first['msg']}{found}{rest}") from None
