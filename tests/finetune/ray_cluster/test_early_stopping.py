"""ASHA over recorded results: the same decisions after a restart, without anything but JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

from overtone.finetune.ray_cluster.early_stopping import TrialJudge
from overtone.finetune.tuning.study_record import RESULTS, EarlyStopping, read_results

SETTINGS = EarlyStopping(grace=5, reduction=2)


def test_a_trial_that_falls_behind_is_stopped_at_a_rung(tmp_path: Path) -> None:
    judge = TrialJudge(tmp_path, False, SETTINGS)
    assert judge.report(0, 4, 9.0, False) is None, "before the first rung"
    assert judge.report(0, 5, 1.0, False) is None and judge.report(1, 5, 0.5, False) is None
    reason = judge.report(2, 5, 2.0, False)
    assert reason == "early stopping: 2 at step 5 is not among the best 1/2 of the trials there"
    assert judge.report(0, 6, 9.0, False) is None, "between two rungs"
    assert judge.report(1, 10, 0.4, False) is None and judge.report(0, 10, 0.9, False) == reason.replace("2 at step 5", "0.9 at step 10")
    assert [(result.trial, result.step, result.stop is not None) for result in read_results(tmp_path)] == [
        *[(0, 4, False), (0, 5, False), (1, 5, False), (2, 5, True), (0, 6, False), (1, 10, False), (0, 10, True)]
    ]


def test_the_highest_value_is_best_if_the_metric_says_so(tmp_path: Path) -> None:
    judge = TrialJudge(tmp_path, True, SETTINGS)
    assert judge.report(0, 5, 0.5, False) is None and judge.report(1, 5, 0.9, False) is None
    assert judge.report(2, 5, 0.1, False) is not None


def test_a_restarted_judge_has_the_same_rungs_and_repeats_its_answers(tmp_path: Path) -> None:
    first = TrialJudge(tmp_path, False, SETTINGS)
    answers = [first.report(trial, 5, value, False) for trial, value in ((0, 1.0), (1, 0.5), (2, 2.0))]
    recorded = (tmp_path / RESULTS).read_bytes()
    second = TrialJudge(tmp_path, False, SETTINGS)
    assert [second.report(trial, 5, 100.0, False) for trial in (0, 1, 2)] == answers, "what is recorded counts, not what is reported again"
    assert (tmp_path / RESULTS).read_bytes() == recorded
    assert second.report(3, 5, 1.5, False) is not None and second.report(4, 5, 0.4, False) is None


def test_a_trial_at_its_last_step_is_not_stopped_and_still_counts(tmp_path: Path) -> None:
    judge = TrialJudge(tmp_path, False, SETTINGS)
    assert judge.report(0, 5, 1.0, True) is None and judge.report(1, 5, 2.0, True) is None
    assert judge.report(2, 5, 3.0, False) is not None


def test_without_early_stopping_values_are_only_recorded(tmp_path: Path) -> None:
    judge = TrialJudge(tmp_path, False, None)
    assert [judge.report(trial, 5, float(trial), False) for trial in range(4)] == [None] * 4
    assert len(list(read_results(tmp_path))) == 4
