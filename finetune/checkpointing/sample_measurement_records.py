"""Measurements of the samples of a checkpoint, in `samples/step-…/measurements.json` of the run, beside the clips.

A sampling process measures a checkpoint some steps after it was committed, and a committed checkpoint is never changed, so the result is
written to a separate file. These files alone decide: a resumed run reads them, and measures only the checkpoints that have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from overtone.finetune.checkpointing.checkpoint_metadata import Steps
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import SAMPLED
from overtone.finetune.recipe import CheckpointState
from overtone.finetune.storage import files
from overtone.finetune.storage.json_schema import JsonPart, validate_json
from overtone.finetune.storage.strict_json import read_object

FOLDER, RECORD = "samples", "measurements.json"


class SampleMeasurement(JsonPart):
    """`measurements.json` of one step."""

    step: Steps
    manifest: str
    """SHA-256 of the checkpoint's manifest.json."""
    settings: str
    """Digest of prompts, recognizer, sampling, and everything else that the metrics depend on besides the weights."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Name, without `sample/` → value. It is empty if the measurement failed."""
    problem: str | None = None
    """The reason why the measurement failed. It is not repeated: the checkpoint counts as one without a value."""


class Standing(NamedTuple):
    """Result of the measurements so far."""

    best: int | None
    """Step with the best value."""
    value: float | None
    """Its value."""
    stale: int
    """Number of measured samples since then."""
    ended: bool
    """True if `train.patience` is used up."""


def folder_of_step(run_dir: Path, step: int) -> Path:
    """Return the folder with the samples of a step."""
    return run_dir / FOLDER / f"step-{step:08d}"


def write_measurement(run_dir: Path, measurement: SampleMeasurement, facts: Mapping[str, object]) -> None:
    """Write `measurements.json`, with more `facts` for the reader: the texts, their transcripts, the recognizer, the sampling."""
    files.write_json(folder_of_step(run_dir, measurement.step) / RECORD, {**measurement.model_dump(), **facts})


def read_measurements(run_dir: Path, settings: str | None) -> dict[int, SampleMeasurement]:
    """Step → what was measured with these settings, in the order of the steps. A file that cannot be read counts as missing: its checkpoint
    is measured again."""
    found: dict[int, SampleMeasurement] = {}
    for path in sorted((run_dir / FOLDER).glob(f"step-*/{RECORD}")):
        try:
            measurement = SampleMeasurement.model_validate(validate_json(SampleMeasurement, read_object(path)))
        except (OSError, UserError, ValueError):
            continue
        if measurement.settings == settings and path.parent.name == f"step-{measurement.step:08d}":
            found[measurement.step] = measurement
    return found


def discard_later(run_dir: Path, step: int) -> list[int]:
    """Remove the measurements of steps after `step`, from which the run resumes: it will save other checkpoints there. Returns the
    steps."""
    found = sorted((run_dir / FOLDER).glob(f"step-{'[0-9]' * 8}/{RECORD}"))
    later = [path for path in found if path.parent.name > f"step-{step:08d}"]
    for path in later:
        files.discard(path)
    return [int(path.parent.name.removeprefix("step-")) for path in later]


def add_measurements(states: Mapping[str, CheckpointState], run_dir: Path, settings: str | None) -> dict[str, CheckpointState]:
    """Return the states (checkpoint name → `state.json`) with the metrics of samples among those of the evaluation, as `sample/NAME`, and
    with `sample_due` only where they are still missing."""
    measured, complete = {} if settings is None else read_measurements(run_dir, settings), dict(states)
    for checkpoint, state in states.items():
        if (found := measured.get(state["step"])) is not None:
            metrics = {f"{SAMPLED}{name}": value for name, value in found.metrics.items()}
            complete[checkpoint] = {**state, "evaluation": {**state["evaluation"], **metrics}, "sample_due": False}
    return complete


def assess_measurements(measured: Iterable[SampleMeasurement], best_by: BestBy, patience: int | None) -> Standing:
    """Go through the measurements in the order of their steps, up to the one that uses up the patience: later ones, made because training
    had already continued, do not count. So the result does not depend on how long a measurement took.

    A sample without the metric is no improvement; one that could not be measured is not counted at all.
    """
    best: int | None = None
    value: float | None = None
    stale = 0
    for one in sorted((each for each in measured if each.problem is None), key=lambda each: each.step):
        found = one.metrics.get(best_by.metric.removeprefix(SAMPLED))
        if found is not None and (value is None or best_by.rank(found) > best_by.rank(value)):
            best, value, stale = one.step, found, 0
        else:
            stale += 1
        if patience is not None and stale >= patience:
            return Standing(best, value, stale, ended=True)
    return Standing(best, value, stale, ended=False)
