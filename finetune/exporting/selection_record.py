"""`selection/selection.json` of a run: the checkpoint and the strength that `overtone select` chose, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from overtone.finetune.checkpointing import checkpoint, sample_measurement_records
from overtone.finetune.checkpointing.checkpoint_metadata import Steps
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export import LARGEST_STRENGTH
from overtone.finetune.storage import files
from overtone.finetune.storage.json_schema import JsonPart, validate_json
from overtone.finetune.storage.strict_json import read_object

FOLDER, RECORD = "selection", "selection.json"


def _check_printable(text: str) -> str:
    if not text.isprintable():  # it is printed: escape sequences would control the terminal
        raise ValueError("expected one line of printable characters")
    return text


class SelectedCheckpoint(JsonPart):
    """The choice of a selection."""

    step: Steps
    strength: Annotated[float, Field(ge=0, le=LARGEST_STRENGTH)]
    """Factor of the update, as in `overtone export`."""
    manifest: str
    """SHA-256 of the checkpoint's manifest.json: another run in the same folder may reach the same step."""
    reason: Annotated[str, AfterValidator(_check_printable), Field(max_length=2000)]
    """One sentence."""


def folder_of(run_dir: Path) -> Path:
    """Return the folder with everything that a selection writes."""
    return run_dir / FOLDER


def find_candidates(run_dir: Path) -> tuple[list[Path], list[str]]:
    """Return the valid checkpoints of a run by step, and a sentence about each damaged one. Raises `UserError` if none is valid."""
    checkpoint.find(run_dir)  # with its messages: no checkpoints, all are damaged, or they are of a later version
    found = sorted(checkpoint.list_checkpoints(checkpoint.folder_of(run_dir)))
    problems = {path: problem for path in found if (problem := checkpoint.find_problem(path, with_moments=False)) is not None}
    notes = [f"{path.name} is damaged and was not considered: {problem}" for path, problem in problems.items()]
    return [path for path in found if path not in problems], notes


def write_selection(run_dir: Path, chosen: Path, strength: float, reason: str, record: Mapping[str, object]) -> SelectedCheckpoint:
    """Write selection.json: the choice, for `overtone export --best`, and the `record` of how it was made."""
    digest = files.digest(chosen / "manifest.json")
    choice = SelectedCheckpoint(step=checkpoint.step_of(chosen), strength=strength, manifest=digest, reason=reason)
    files.write_json(files.make_folder(folder_of(run_dir)) / RECORD, {"choice": choice.model_dump(), **record})
    return choice


def choose_by_samples(run_dir: Path) -> tuple[Path, SelectedCheckpoint] | None:
    """Return the checkpoint with the best metric of its samples, if `checkpoint.best_by` of the newest one is such a metric and some were
    measured. Raises `UserError` if the checkpoint is not the one that was measured."""
    newest, _ = checkpoint.find_newest_valid(run_dir, with_moments=False)
    if newest is None:
        return None
    state = checkpoint.read_state(newest)
    best_by = BestBy.parse(state["best_by"])
    if not best_by.is_sampled:
        return None
    values = checkpoint.read_metric(newest.parent, best_by)
    if not values:
        return None
    step = min(values, key=lambda step: (-best_by.rank(values[step]), step))
    chosen = checkpoint.find(newest.parent / f"step-{step:08d}")
    measured = sample_measurement_records.read_measurements(run_dir, state["sampling"])[step]
    if files.digest(chosen / "manifest.json") != measured.manifest:
        raise UserError(f"--best: {chosen} was saved again after it was measured; give --step, or train with the same command once more")
    samples = "checkpoint" if len(values) == 1 else "checkpoints"
    reason = f"{best_by.describe()} of {len(values)} kept and measured {samples}: {values[step]:.6g}"
    return chosen, SelectedCheckpoint(step=step, strength=1.0, manifest=measured.manifest, reason=reason)


def read_selection(run_dir: Path) -> tuple[Path, SelectedCheckpoint]:
    """Return the selected checkpoint and the choice: of `overtone select`, or else of the run itself by the metrics of its samples. Raises
    `UserError` if there is none, and if the checkpoint is gone or another one now."""
    path, again = folder_of(run_dir) / RECORD, overtone_command("select", run_dir)
    if not path.is_file() and (found := choose_by_samples(run_dir)) is not None:
        return found
    if not path.is_file():
        raise UserError(f"--best: no checkpoint of {run_dir} was selected yet; run `{again} …` first, or give --step and --strength")
    try:
        choice = SelectedCheckpoint.model_validate(validate_json(SelectedCheckpoint, read_object(path).get("choice")))
    except ValueError as error:
        raise UserError(f"{path}: choice.{error}; run `{again} …` again") from None
    chosen = checkpoint.folder_of(run_dir) / f"step-{choice.step:08d}"
    if not chosen.is_dir():
        there = ", ".join(str(checkpoint.step_of(one)) for one in sorted(checkpoint.list_checkpoints(checkpoint.folder_of(run_dir))))
        raise UserError(
            f"--best: the selected checkpoint {chosen.name} is gone; existing steps: {there or 'none'}; run `{again} …` again "
            "(`--checkpoint.keep spread` keeps checkpoints over the whole run)"
        )
    if files.digest(chosen / "manifest.json") != choice.manifest:
        raise UserError(f"--best: {chosen} was saved again after the selection; run `{again} …` again")
    return chosen, choice
