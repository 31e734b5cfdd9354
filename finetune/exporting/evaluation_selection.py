"""The selection of the best checkpoint of a run by the evaluations during training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from overtone.finetune.checkpointing import checkpoint, sample_measurement_records
from overtone.finetune.checkpointing.retention import BestBy, choose_best, is_comparable
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import selection_record
from overtone.finetune.exporting.selection_record import SelectedCheckpoint


@dataclass(frozen=True)
class EvaluatedCheckpoints:
    """The compared checkpoints of a run, and the choice among them."""

    choice: SelectedCheckpoint
    metric: str
    """By which they were compared."""
    values: Mapping[int, float]
    """Value of the metric by step."""
    notes: list[str]
    """Notes on the checkpoints that were not considered, and why."""

    def render_report(self) -> str:
        """Return the values, the notes and the reason, for a terminal."""
        rows = [
            f"{'*' if step == self.choice.step else ' '} step-{step:08d}  {self.metric} {value:.6g}" for step, value in self.values.items()
        ]
        return "\n".join([*rows, *(f"note: {note}" for note in self.notes), f"selected: {self.choice.reason}"])


def select_by_evaluation(run_dir: Path) -> EvaluatedCheckpoints:
    """Choose the checkpoint with the best evaluation by the run's own `checkpoint.best_by`, and write the choice into the run. Raises
    `UserError` if none was evaluated."""
    found, notes = selection_record.find_candidates(run_dir)
    every = {path.name: checkpoint.read_state(path) for path in found}
    newest = every[found[-1].name]
    best_by = BestBy.parse(newest["best_by"])
    if best_by.is_sampled:
        every = sample_measurement_records.add_measurements(every, run_dir, newest["sampling"])
    states = {name: state for name, state in every.items() if is_comparable(state, newest, best_by)}
    other_rows = f"was evaluated on other validation rows than {found[-1].name} and was not considered"
    notes += [f"{name} {other_rows}" for name in every if name not in states]
    values = {name: best_by.rank(score) for name, state in states.items() if (score := best_by.score(state)) is not None}
    name = choose_best(states, best_by)
    if name is None:
        raise UserError(
            f"{run_dir}: none of {len(states)} checkpoints was evaluated by {best_by.metric} at its step; train with data.val, and with "
            "eval.every at the steps of checkpoint.every"
        )
    notes += [f"{one} has no evaluation by {best_by.metric} at its step and was not considered" for one in states if one not in values]
    reason = f"{name} has the {best_by.describe()} of {len(values)} evaluated checkpoints: {values[name]:.6g}"
    record = {"method": f"checkpoint.best_by: {' '.join(best_by.describe().split())}", "values": values, "notes": notes}
    folder = checkpoint.folder_of(run_dir)
    choice = selection_record.write_selection(run_dir, folder / name, 1.0, reason, record)
    return EvaluatedCheckpoints(choice, best_by.metric, {checkpoint.step_of(folder / one): value for one, value in values.items()}, notes)
