"""Evaluations of checkpoints that were saved without one, in `late_evaluations/step-….json` of the run.

A stop does not wait for an evaluation: the checkpoint is saved, and the next launch evaluates its weights before it trains on. A committed
checkpoint is never changed, so the result is written to a separate file, from which `complete_state` adds it to the checkpoint's state.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from overtone.finetune.checkpointing.checkpoint_metadata import Steps
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import CHECKPOINTS
from overtone.finetune.recipe import CheckpointState
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.json_schema import JsonPart, parse_model
from overtone.finetune.storage.strict_json import read_object

FOLDER = "late_evaluations"


class LateEvaluation(JsonPart):
    """The keys of `state.json` that an evaluation decides."""

    validation_loss: float
    evaluation: dict[str, float]
    best_by: str | None
    best_value: float | None
    stale_evaluations: Steps
    validation: str
    """SHA-256 of the validation data."""


class LateEvaluationRecord(LateEvaluation):
    """`late_evaluations/step-….json`."""

    manifest: str
    """SHA-256 of the checkpoint's manifest.json."""


def write_evaluation(checkpoint: Path, evaluation: LateEvaluation) -> None:
    """Write the evaluation of a committed checkpoint. Raises `UserError` if the run's folder cannot be written."""
    path = _find_record(checkpoint)
    with files.explain_write_errors(path.parent):
        files.write_json(path, {**evaluation.model_dump(), "manifest": _digest_manifest(checkpoint)})


def complete_state(checkpoint: Path, state: CheckpointState) -> CheckpointState:
    """Return the state of a checkpoint with its late evaluation, if it was saved without one. A file that cannot be read, or belongs to a
    checkpoint that was here before, counts as missing: the next launch evaluates again."""
    if state["validation_loss"] is not None or checkpoint.parent.name != CHECKPOINTS:
        return state
    try:
        found = parse_model(LateEvaluationRecord, read_object(_find_record(checkpoint)))
        if found.manifest != _digest_manifest(checkpoint):
            return state
    except (OSError, UserError, ValueError):
        return state
    return {
        **state,
        "validation_loss": found.validation_loss,
        "evaluation": found.evaluation,
        "best_by": found.best_by,
        "best_value": found.best_value,
        "stale_evaluations": found.stale_evaluations,
        "validation": found.validation,
    }


def _find_record(checkpoint: Path) -> Path:
    return checkpoint.parent.parent / FOLDER / f"{checkpoint.name}.json"


def _digest_manifest(checkpoint: Path) -> str:
    return hashlib.sha256(input_files.read_bytes(checkpoint / "manifest.json")).hexdigest()
