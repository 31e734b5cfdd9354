"""Types of `state.json`, the progress of a run in a checkpoint. `checkpoint_metadata.State` checks what is read."""

from __future__ import annotations

from typing import Any, TypedDict


class SourceState(TypedDict):
    """A file of the mixture that a run trains on."""

    name: str
    share: str
    """Share of the samples, as a fraction."""
    digest: str
    rows: int
    positions: int


class DataState(TypedDict):
    """The data file that a run trains on, or its mixture."""

    digest: str
    """SHA-256 of the file, or over the sources and their shares."""
    rows: int
    positions: int
    sources: list[SourceState]
    """Empty without `data.mix`."""


class BaseState(TypedDict):
    """The base model of a run."""

    source: str
    revision: str | None
    digest: str
    """SHA-256 over weights and config.json."""
    files: dict[str, str]
    """SHA-256 of each file that affects samples or the model, by its path in the base."""


class CheckpointState(TypedDict):
    """The keys of `state.json`, which `checkpoint_metadata.State` describes."""

    format: int
    step: int
    recipe: str
    data: DataState
    base: BaseState
    order: dict[str, int | bool]
    lora: dict[str, Any] | None
    quantization: str | None
    optimizer: str
    recipe_state: dict[str, Any]
    added: list[str]
    experts: list[dict[str, Any]]
    base_distance: bool
    buffers: list[str]
    place: dict[str, int]
    optimizer_steps: int
    skipped: int
    recent: list[list[float]]
    validation_loss: float | None
    evaluation: dict[str, float]
    best_by: str | None
    best_value: float | None
    stale_evaluations: int
    world: int
    strategy: str
    device: str
    validation: str | None
    sampling: str | None
    sample_due: bool
