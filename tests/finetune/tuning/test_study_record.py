"""The record of a study: written, read again, continued, and refused if it is of another study or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.errors import UserError
from overtone.finetune.tuning.study_record import (
    RECORD,
    RESULTS,
    EarlyStopping,
    Result,
    StudyDefinition,
    StudyRecord,
    TrialRecord,
    append_result,
    merge_trials,
    read_record,
    read_results,
    write_record,
)

DEFINITION = StudyDefinition(
    recipe="csm",
    arguments=["--train.steps", "9"],
    space={"train.lr": {"uniform": [1e-5, 1e-4]}},
    metric="val/loss min",
    seed=0,
    early_stopping=EarlyStopping(grace=5, reduction=3.0),
)
LOW, HIGH = {"train.lr": 1e-5}, {"train.lr": 3e-5}
TRIALS = [
    TrialRecord(number=0, values=LOW, run_seed=0, status="finished", step=9, value=2.5, value_step=6, launches=2, seconds=1.5),
    TrialRecord(number=1, values=HIGH, run_seed=0),
]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    write_record(tmp_path, StudyRecord(definition=DEFINITION, trials=TRIALS))
    assert read_record(tmp_path) == StudyRecord(definition=DEFINITION, trials=TRIALS)
    assert [trial.name for trial in TRIALS] == ["trial-0000", "trial-0001"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ('{"format": 1}', "is not the record of a study .definition: "),
        ('{"format": 2}', "is not the record of a study .format: "),
        ('{"format": 1, "trials": [{"number": -1}]}', "is not the record of a study"),
    ],
)
def test_a_damaged_record_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text(content)
    with pytest.raises(UserError, match=f"{RECORD} {message}"):
        read_record(tmp_path)


def test_new_draws_are_added_and_recorded_trials_stay(tmp_path: Path) -> None:
    known = StudyRecord(definition=DEFINITION, trials=TRIALS)
    drawn = [TrialRecord(number=number, values={"train.lr": 1e-5 * number}, run_seed=0) for number in (1, 2)]
    assert merge_trials(tmp_path, known, DEFINITION, drawn) == [*TRIALS, drawn[1]]
    assert merge_trials(tmp_path, None, DEFINITION, drawn) == drawn


def test_another_study_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    known = StudyRecord(definition=DEFINITION, trials=TRIALS)
    other = DEFINITION.model_copy(update={"early_stopping": EarlyStopping(grace=7, reduction=3.0)})
    with pytest.raises(
        UserError, match=r'is of a study with another early stopping: \{"grace": 5.*, now \{"grace": 7.*or choose another --run.dir'
    ):
        merge_trials(tmp_path, known, other, [])
    (tmp_path / "log.jsonl").touch()
    with pytest.raises(UserError, match="is the folder of a run, not of a study"):
        merge_trials(tmp_path, None, DEFINITION, [])


def test_results_are_read_in_their_order_without_a_partial_last_line(tmp_path: Path) -> None:
    results = [Result(trial=1, step=5, value=2.0), Result(trial=0, step=5, value=3.0, stop="early stopping")]
    for result in results:
        append_result(tmp_path, result)
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"trial": 1, "st')
    assert list(read_results(tmp_path)) == results
    append_result(tmp_path, Result(trial=1, step=10, value=1.0))
    with pytest.raises(UserError, match=f"{RESULTS}:3: not a result"):
        list(read_results(tmp_path))
