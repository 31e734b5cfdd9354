"""Schema and strict parser of a checkpoint's JSON files, `state.json` and `manifest.json`; errors name the invalid key.

All readers of these files use this module, so that no content can cause a traceback: wrong types, missing keys, numbers out of range, lone
surrogates, and unlimited nesting.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field, JsonValue

from overtone.finetune.config import LAST_STEP, Lora
from overtone.finetune.recipe import CheckpointState
from overtone.finetune.storage.json_schema import JsonPart, validate_json

FORMAT = 1
DEEPEST = 100
"""Maximum nesting; Python's own recursion limit would be reached at about ten times as many levels."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
Steps = Annotated[int, Field(ge=0, le=LAST_STEP)]


def _check_share(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,400}(/[1-9][0-9]{0,400})?", text) or not 0 < Fraction(text) <= 1:
        raise ValueError("expected a fraction between 0 and 1")
    return text


class SourceDigest(JsonPart):
    """A file of the mixture that a run trains on."""

    name: str
    share: Annotated[str, AfterValidator(_check_share)]
    """Share of the samples, as a fraction."""
    digest: str
    rows: Count
    positions: Count


class DataDigest(JsonPart):
    """The data file that a run trains on, or its mixture."""

    digest: str
    """SHA-256 of the file, or over the sources and their shares."""
    rows: Count
    positions: Count
    sources: list[SourceDigest]
    """Empty without `data.mix`."""


class BaseDigest(JsonPart):
    """The base model of a run."""

    source: str
    revision: str | None
    digest: str
    """SHA-256 over weights and config.json."""
    files: dict[str, str]
    """SHA-256 of each file that affects samples or the model, by its path in the base."""


class AdaptedParameter(JsonPart):
    """`AdaptedExperts` in finetune/modeling/expert_adapters.py."""

    name: str
    transposed: bool


class PlaceState(JsonPart):
    """Position in the data (`Place` in finetune/data/batching.py)."""

    epoch: Count
    window: Count
    micro: Count


def _check_rank(lora: Lora) -> Lora:
    if lora.rank >= 2**31:
        raise ValueError("the rank exceeds the size of any matrix")
    return lora


class State(JsonPart):
    """`state.json`: progress of a run, and digests of its data, base and recipe."""

    format: int
    step: Steps
    recipe: str
    data: DataDigest
    base: BaseDigest
    order: dict[str, int | bool]
    lora: Annotated[Lora, AfterValidator(_check_rank)] | None
    quantization: str | None
    optimizer: str
    """`train.optimizer`."""
    recipe_state: dict[str, Any]
    added: list[str]
    """Names of the trained parameters that are not from the base (`Loaded.added`)."""
    experts: list[AdaptedParameter] = Field(default_factory=list)
    """Experts that are one parameter and have an adapter, in the model's order."""
    base_distance: bool
    """True if `train.base_distance` is set."""
    buffers: list[str]
    place: PlaceState
    optimizer_steps: Steps
    skipped: Steps
    recent: list[Annotated[list[float], Field(min_length=2, max_length=2)]]
    validation_loss: float | None
    evaluation: dict[str, float]
    """All metrics of an evaluation at this step; empty without one."""
    best_by: str | None
    """`checkpoint.best_by`; None: the lowest validation loss."""
    best_value: float | None
    """The best value of that metric up to this step."""
    stale_evaluations: Steps
    """Number of evaluations since then."""
    world: Annotated[int, Field(ge=1)]
    strategy: str
    device: str
    """cpu or cuda."""
    validation: str | None
    """SHA-256 of the validation data; None without any."""
    sampling: str | None
    """Digest of everything that the metrics of samples depend on besides the weights, if `checkpoint.best_by` is one of them."""
    sample_due: bool
    """True if samples of this step are measured with these settings."""


class FileDigest(JsonPart):
    """Size and SHA-256 of a file of a checkpoint."""

    bytes: Count
    digest: str
    weights_bytes: Count | None = None
    """A shard's bytes before the optimizer's moments, which are all that an export reads; None for other files."""
    weights_digest: str | None = None
    """SHA-256 of these bytes."""


class Manifest(JsonPart):
    """`manifest.json`."""

    format: int
    step: Steps
    files: dict[str, FileDigest]


def parse_json(data: bytes | str) -> JsonValue:
    """As `json.loads`, but raises only `ValueError`, whatever the content."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [child for each in level for child in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())]
        if not level:
            return value
    raise ValueError(f"its values are nested more than {DEEPEST} levels deep")


def parse_state(data: bytes | str) -> CheckpointState:
    """`state.json` with every key of `State`. Raises `ValueError` naming the first invalid key."""
    return cast("CheckpointState", validate_json(State, parse_json(data)))


def parse_manifest(content: dict[str, Any]) -> dict[str, Any]:
    """As `parse_state`, for the content of `manifest.json`."""
    return validate_json(Manifest, content)
