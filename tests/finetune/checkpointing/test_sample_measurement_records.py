"""What was measured of samples decides which checkpoint is the best, whenever it was measured, and which ones are kept until then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.checkpoint_metadata import parse_state
from overtone.finetune.checkpointing.retention import BestBy
from overtone.finetune.checkpointing.sample_measurement_records import (
    RECORD,
    SampleMeasurement,
    Standing,
    add_measurements,
    assess_measurements,
    discard_later,
    folder_of_step,
    read_measurements,
    write_measurement,
)
from overtone.finetune.storage.files import json_bytes
from tests.finetune import tiny

WER = BestBy.parse("sample/wer")


def measured(step: int, wer: float | None = None, settings: str = "these", problem: str | None = None) -> SampleMeasurement:
    metrics = {} if wer is None else {"wer": wer}
    return SampleMeasurement(step=step, manifest="digest", settings=settings, metrics=metrics, problem=problem)


def record(run: Path, *measurements: SampleMeasurement) -> None:
    for one in measurements:
        write_measurement(run, one, {"texts": ["Good day."]})


def states(*steps: int, due: bool = True, sampling: str = "these") -> dict[str, dict[str, Any]]:
    changes = {"best_by": "sample/wer min", "sampling": sampling, "sample_due": due, "evaluation": {"loss": 1.0}}
    return {f"step-{step:08d}": parse_state(json_bytes(tiny.state(step, **changes))) for step in steps}


def steps_of(names: list[str]) -> set[int]:
    return {checkpoint.step_of(Path(name)) for name in names}


# --- which is the best


@pytest.mark.parametrize(
    ("values", "patience", "standing"),
    [
        ([], 2, Standing(None, None, 0, ended=False)),
        ([9.0, 4.0, 6.0], None, Standing(2, 4.0, 1, ended=False)),
        ([4.0, 4.0], None, Standing(1, 4.0, 1, ended=False)),
        ([9.0, 4.0, 6.0, 5.0], 2, Standing(2, 4.0, 2, ended=True)),
        ([9.0, 4.0, 6.0, 5.0, 1.0], 2, Standing(2, 4.0, 2, ended=True)),
        ([None, None], 2, Standing(None, None, 2, ended=True)),
    ],
)
def test_patience_counts_measured_samples_and_nothing_after_it_counts(
    values: list[float | None], patience: int | None, standing: Standing
) -> None:
    assert assess_measurements([measured(step, wer) for step, wer in enumerate(values, 1)], WER, patience) == standing


def test_a_failed_measurement_is_not_counted() -> None:
    found = [measured(1, 4.0), measured(2, problem="out of memory"), measured(3, 5.0)]
    assert assess_measurements(found, WER, 2) == Standing(1, 4.0, 1, ended=False)


def test_the_highest_may_be_the_best() -> None:
    found = [SampleMeasurement(step=step, manifest="", settings="", metrics={"similarity": value}) for step, value in ((1, 0.2), (2, 0.7))]
    assert assess_measurements(found, BestBy.parse("sample/similarity max"), None).best == 2


@given(st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=12), st.integers(1, 4), st.randoms())
def test_the_choice_does_not_depend_on_when_measurements_arrive(values: list[int | None], patience: int, chance: Any) -> None:
    """Training may be far ahead of the measurements, or wait for each; those that arrive after the end do not change the choice."""
    whole = [measured(step, None if value is None else float(value)) for step, value in enumerate(values, 1)]
    final, arrived = assess_measurements(whole, WER, patience), list[SampleMeasurement]()
    for one in whole:
        arrived.append(one)
        shuffled = chance.sample(arrived, len(arrived))
        if assess_measurements(shuffled, WER, patience).ended:
            assert assess_measurements(arrived, WER, patience) == final
            return
    assert not final.ended


# --- files


def test_measurements_are_read_by_their_settings_and_damaged_ones_are_missing(tmp_path: Path) -> None:
    record(tmp_path, measured(5, 3.0), measured(10, 2.0, settings="others"), measured(15, 1.0), measured(20, 0.5), measured(25, 0.1))
    (folder_of_step(tmp_path, 15) / RECORD).write_text('{"step": 15, "metr')
    (folder_of_step(tmp_path, 20) / RECORD).write_bytes((folder_of_step(tmp_path, 5) / RECORD).read_bytes())
    assert json.loads((folder_of_step(tmp_path, 5) / RECORD).read_text())["texts"] == ["Good day."]
    assert [*read_measurements(tmp_path, "these")] == [5, 25]
    assert discard_later(tmp_path, 5) == [10, 15, 20, 25] and [*read_measurements(tmp_path, "these")] == [5]


def test_a_checkpoint_gets_the_metrics_of_its_samples(tmp_path: Path) -> None:
    record(tmp_path, measured(5, 3.0))
    first, second = add_measurements(states(5, 10), tmp_path, "these").values()
    assert first["evaluation"] == {"loss": 1.0, "sample/wer": 3.0} and not first["sample_due"]
    assert second["evaluation"] == {"loss": 1.0} and second["sample_due"]
    assert add_measurements(states(5), tmp_path, "others") == states(5) == add_measurements(states(5), tmp_path, None)


# --- what is kept


def test_the_best_and_what_is_still_to_be_measured_are_kept(tmp_path: Path) -> None:
    saved = {**states(1, 2, 3, 4, 6, 7), **states(5, due=False)}
    record(tmp_path, measured(1, 9.0), measured(2, 4.0), measured(3, problem="out of memory"))
    gone = checkpoint.choose_surplus(saved, 2, "step-00000007", tmp_path)
    assert steps_of(gone) == {1, 3, 5}, "2 is the best, 4 is not measured, 6 and 7 are the newest"
    record(tmp_path, measured(4, 4.0), measured(6, 8.0))
    assert steps_of(checkpoint.choose_surplus(saved, 2, "step-00000007", tmp_path)) == {1, 3, 4, 5}


def test_checkpoints_with_other_settings_are_neither_best_nor_pending(tmp_path: Path) -> None:
    saved = {**states(1, 2, sampling="others"), **states(3, 4, 5)}
    record(tmp_path, measured(1, 0.0, settings="others"), measured(3, 5.0))
    assert steps_of(checkpoint.choose_surplus(saved, 2, "step-00000005", tmp_path)) == {1, 2}
