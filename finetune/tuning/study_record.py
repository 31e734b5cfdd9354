"""The record of a study: its definition and the state of each trial in study.json, and each reported value in results.jsonl.

Both are JSON that the driver alone writes. A study resumes from them and from the trials' own run folders; nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from overtone.finetune.config import Section
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files, input_files, strict_json

RECORD, RESULTS = "study.json", "results.jsonl"
FORMAT = 1
Status = Literal["waiting", "running", "finished", "stopped early", "diverged", "stopped", "refused", "failed"]
FINAL: tuple[Status, ...] = ("finished", "stopped early", "diverged")
"""Trials that the same command does not start again. A `refused` or `failed` one may succeed once its cause is gone."""


class EarlyStopping(Section):
    """Settings of ASHA (Li et al. 2020, arXiv:1810.05934)."""

    grace: int = Field(ge=1)
    """Optimizer steps of the first rung; no trial is stopped before."""
    reduction: float = Field(gt=1)
    """At each rung, a trial continues if it is among the best 1 / reduction of those that reached it. Each rung has `reduction` times as
    many steps as the previous one."""


class StudyDefinition(Section):
    """Settings that must stay the same for a study to be resumed."""

    recipe: str
    arguments: list[str]
    """Arguments of the training, without the recipe, run.dir and the space."""
    space: dict[str, dict[str, list[Any]]]
    """Key → distribution → its values."""
    metric: str
    """Name in log.jsonl, and min or max."""
    seed: int
    """Seed of the draws."""
    early_stopping: EarlyStopping | None


class TrialRecord(Section):
    """One trial."""

    number: int = Field(ge=0, lt=10**5)
    values: dict[str, Any]
    """Dotted key → value drawn for this trial."""
    run_seed: int
    """`run.seed`, which determines all randomness of the trial."""
    status: Status = "waiting"
    """`diverged`: its loss was not finite, or a spike. `stopped`: by a person or a time budget; the same command resumes it."""
    message: str = ""
    """The reason why it ended."""
    step: int = 0
    """The last optimizer step that was logged."""
    value: float | None = None
    """Value of the study's metric: the best of the evaluations, or the mean over the last steps."""
    value_step: int | None = None
    """Step of the best evaluation."""
    launches: int = 0
    """Number of times that it was started."""
    seconds: float = 0.0
    """Seconds of all its launches."""

    @property
    def name(self) -> str:
        """Name of its run folder inside of the study's folder."""
        return f"trial-{self.number:04}"


class StudyRecord(Section):
    """Content of study.json."""

    format: Literal[1] = 1
    definition: StudyDefinition
    trials: list[TrialRecord]


def read_record(folder: Path) -> StudyRecord | None:
    """Return the record of a study; None if the folder has none. Raises `UserError` for a file that is not a record."""
    place = folder / RECORD
    if not place.exists():
        return None
    try:
        return StudyRecord(**strict_json.read_object(place))
    except (ValidationError, TypeError) as error:
        found = error.errors()[0] if isinstance(error, ValidationError) else None
        problem = f"{'.'.join(map(str, found['loc']))}: {found['msg']}" if found else strict_json.one_line(error)
        raise UserError(
            f"{place} is not the record of a study ({problem}); give another --run.dir, or restore the file: the runs of the trials beside "
            "it are complete without it"
        ) from None


def write_record(folder: Path, record: StudyRecord) -> None:
    """Atomically replace the record of a study."""
    files.write_json(files.make_folder(folder) / RECORD, record.model_dump(mode="json"))


def merge_trials(folder: Path, known: StudyRecord | None, definition: StudyDefinition, drawn: list[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that are recorded, and those of `drawn` that are new. Raises `UserError` for a folder with another study, or with
    runs."""
    if known is None:
        if (folder / "log.jsonl").exists() or (folder / "checkpoints").exists():
            raise UserError(f"--run.dir {folder} is the folder of a run, not of a study; choose another one")
        return drawn
    for name in StudyDefinition.model_fields:
        then, now = getattr(known.definition, name), getattr(definition, name)
        if then != now:
            raise UserError(
                f"{folder / RECORD} is of a study with another {name.replace('_', ' ')}: {_show(then)}, now {_show(now)}; resume it with "
                "its own settings, or choose another --run.dir"
            )
    numbers = {trial.number for trial in known.trials}
    return [*known.trials, *(trial for trial in drawn if trial.number not in numbers)]


def _show(value: object) -> str:
    return json.dumps(value.model_dump() if isinstance(value, Section) else value)


class Result(Section):
    """One line of results.jsonl: a value that a trial has reported, and what early stopping decided."""

    trial: int = Field(ge=0)
    step: int = Field(ge=0)
    value: float
    stop: str | None = None
    """The reason why the trial is stopped here; None: it continues."""


def read_results(folder: Path) -> Iterator[Result]:
    """Yield the reported values in the order in which they were decided on. A partial last line, left by a killed driver, is dropped.
    Raises `UserError` for any other line that is no result."""
    place = folder / RESULTS
    lines = input_files.read_bytes(place).split(b"\n") if place.exists() else []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield Result(**strict_json.loads_object(line))
        except (UserError, ValidationError, TypeError, UnicodeDecodeError) as error:
            if number >= len(lines):  # complete lines end with a line break
                return
            raise UserError(f"{place}:{number}: not a result ({strict_json.one_line(error)}); remove the line") from None


def append_result(folder: Path, result: Result) -> None:
    """Record a value before its trial hears the decision: the same decision then holds after a restart."""
    files.append_line(folder / RESULTS, result.model_dump_json())
