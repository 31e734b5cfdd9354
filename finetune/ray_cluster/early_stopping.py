"""ASHA for the trials of a study: Ray Tune's own `ASHAScheduler`, fed from results.jsonl.

The scheduler's own way to survive a restart is a pickle. Instead, each value is recorded with its decision before the trial continues, and
a new scheduler is fed the recorded values in their order, which gives it the same rungs.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from overtone.finetune.config import LAST_STEP
from overtone.finetune.tuning.study_record import EarlyStopping, Result, append_result, read_results


class TrialJudge:
    """Records the values of all trials of a study, and decides which trials stop. One Ray actor for each study: it decides in the order in
    which values arrive, and a restarted one continues from the file."""

    def __init__(self, folder: Path, highest: bool, settings: EarlyStopping | None) -> None:
        self._folder, self._settings = folder, settings
        self._scheduler = None if settings is None else _make_scheduler(settings, highest)
        self._added = set[int]()
        self._decided = dict[tuple[int, int], str | None]()
        for result in read_results(folder):
            self._rank(result.trial, result.step, result.value)
            self._decided[result.trial, result.step] = result.stop

    def report(self, trial: int, step: int, value: float, last: bool) -> str | None:
        """Return why the trial is to stop at this step; None: it continues. A value that a resumed trial reports again gets the same
        answer.

        `last`: the trial ends at this step anyway; its value counts for the others.
        """
        if (trial, step) not in self._decided:
            stops = self._rank(trial, step, value) and not last
            reason = self._explain(step, value) if stops else None
            append_result(self._folder, Result(trial=trial, step=step, value=value, stop=reason))
            self._decided[trial, step] = reason
        return self._decided[trial, step]

    def _rank(self, trial: int, step: int, value: float) -> bool:
        """Put a value into its rung; returns whether the trial is outside of the best ones there."""
        if self._scheduler is None:
            return False
        named: Any = SimpleNamespace(trial_id=str(trial))  # all that the scheduler reads of a trial
        if trial not in self._added:
            self._added.add(trial)
            self._scheduler.on_trial_add(None, named)
        return bool(self._scheduler.on_trial_result(None, named, {"step": step, "value": value}) == self._scheduler.STOP)

    def _explain(self, step: int, value: float) -> str:
        assert self._settings is not None
        return f"early stopping: {value:.6g} at step {step} is not among the best 1/{self._settings.reduction:g} of the trials there"


def _make_scheduler(settings: EarlyStopping, highest: bool) -> Any:
    from ray.tune.schedulers import ASHAScheduler

    return ASHAScheduler(
        time_attr="step",
        metric="value",
        mode="max" if highest else "min",
        max_t=LAST_STEP,  # the end of a trial is its own matter; further rungs cost nothing
        grace_period=settings.grace,
        reduction_factor=settings.reduction,
        stop_last_trials=False,
    )
