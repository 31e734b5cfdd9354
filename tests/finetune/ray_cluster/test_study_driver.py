"""What a driver finds after the death of the one before. Trials on a cluster are in tests/launch/test_ray_tune.py."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

from overtone.finetune.ray_cluster.study_driver import find_missed_stops
from overtone.finetune.tuning.study_record import Result, Status, TrialRecord, append_result


def test_a_stop_that_the_killed_driver_did_not_see_is_final(tmp_path: Path) -> None:
    statuses: list[Status] = ["running", "running", "finished"]
    trials = [TrialRecord(number=number, values={}, run_seed=0, status=status) for number, status in enumerate(statuses)]
    append_result(tmp_path, Result(trial=0, step=5, value=1.0))
    append_result(tmp_path, Result(trial=1, step=5, value=2.0, stop="early stopping: x"))
    append_result(tmp_path, Result(trial=2, step=9, value=2.0, stop="early stopping: y"))
    assert find_missed_stops(tmp_path, trials) == {1: "early stopping: x"}
