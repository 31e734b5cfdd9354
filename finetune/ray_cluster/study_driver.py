"""Runs the trials of a study on a Ray cluster: as many at a time as there is room for, each as a task in a process of its own.

The driver's state is study.json. If it is killed, Ray ends its workers, and the next driver starts the trials that are not done, which
resume from their checkpoints.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overtone.finetune.checkpointing.checkpoint import folder_of
from overtone.finetune.monitoring.stop_requests import STOP_FILE, StopRequests
from overtone.finetune.ray_cluster.early_stopping import TrialJudge
from overtone.finetune.ray_cluster.trial_worker import TrialOutcome, prepare_trial_data, train_trial
from overtone.finetune.storage import files
from overtone.finetune.storage.strict_json import one_line
from overtone.finetune.storage.text_lines import split_lines
from overtone.finetune.terminal import print_line
from overtone.finetune.tuning.search_space import describe_values
from overtone.finetune.tuning.study_plan import TrialOrder
from overtone.finetune.tuning.study_record import FINAL, EarlyStopping, Result, TrialRecord, read_results
from overtone.finetune.tuning.trial_metric import TrialMetric, read_curve, summarize_curve

SHOWN_CHARACTERS = 300
"""Characters of a trial's message on the console; the record and the page have all of it."""
POLL_SECONDS = 0.5
"""Seconds that the driver waits for a trial before it looks for reported values and for requests to stop."""


@dataclass(frozen=True)
class TrialSettings:
    """Settings of the trials of a study."""

    folder: Path
    """Folder of the study."""
    metric: TrialMetric
    early_stopping: EarlyStopping | None
    each: dict[str, float]
    """Resources of one trial: `GPU` or `CPU`."""
    at_once: int
    """Maximum number of trials at a time."""
    failures: int
    """Number of times that a trial, or a preparation of data, is started again after the death of its worker."""


def prepare_shared_data(
    groups: Sequence[Sequence[TrialOrder]], settings: TrialSettings, requests: StopRequests
) -> tuple[dict[int, TrialOutcome], str | None]:
    """Fill the cache that each group of trials shares, before the first trial; `groups`: see `list_preparations`. Returns number of a trial
    whose data cannot be prepared → how it ends, and why the preparation was stopped before its end, or None.

    The first trial of a group prepares its data. If that fails, the trial would fail as well, perhaps for its own values, so the next one
    prepares it. A preparation whose worker dies is started again, at most `settings.failures` times for a group, whose trials then fail.
    """
    import ray

    task = ray.remote(**_options(settings.each))(prepare_trial_data)
    running = {task.remote(group[0]): deque(group) for group in groups}
    deaths, problems = Counter[str](), dict[int, TrialOutcome]()
    while running:
        if (request := requests.poll()) is not None:
            for reference in running:
                ray.cancel(reference, force=True)
            return problems, request[0]
        done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
        for reference in done:
            left = running.pop(reference)
            try:
                outcome = _read_preparation(reference)
            except ray.exceptions.RayError as error:
                deaths[name := left[0]["prepared"]] += 1
                count = f"{deaths[name]} of at most {settings.failures + 1} times"
                outcome = {"status": "failed", "message": f"preparing the data: its worker died ({count}): {_last_line(error)}"}
                if deaths[name] <= settings.failures:
                    print_line(f"{name}: {outcome['message']}; starting it again")
                else:
                    problems |= {order["number"]: outcome for order in left}
                    left.clear()
            else:
                if outcome is None:
                    left.clear()
                else:
                    problems[left.popleft()["number"]] = outcome
            if left:
                running[task.remote(left[0])] = left
    return problems, None


def _read_preparation(reference: Any) -> TrialOutcome | None:
    """Return how the trial ends whose data was prepared; None if the data is ready. Raises Ray's error if the worker died."""
    import ray

    try:
        mistake: str = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        return {"status": "failed", "message": f"preparing the data failed: {_last_line(error)}"}
    return {"status": "refused", "message": mistake} if mistake else None


def _options(each: dict[str, float]) -> dict[str, Any]:
    """A process of its own, which ends with the task: torch's process group and its memory are not left to the next trial."""
    return {"num_cpus": each.get("CPU", 0.0), "num_gpus": each.get("GPU", 0.0), "max_calls": 1, "max_retries": 0}


def find_missed_stops(folder: Path, trials: Sequence[TrialRecord]) -> dict[int, str]:
    """Return the number of a trial that early stopping stopped while the driver was being killed → the reason: it must not continue,
    although its record does not say so yet."""
    stops = {result.trial: result.stop for result in read_results(folder) if result.stop is not None}
    return {trial.number: stops[trial.number] for trial in trials if trial.status not in FINAL and trial.number in stops}


@dataclass
class TrialDriver:
    """Starts trials, collects how they ended, and keeps their records."""

    settings: TrialSettings
    trials: dict[int, TrialRecord]
    orders: dict[int, TrialOrder]
    save: Callable[[list[TrialRecord]], None]
    """Called with all records when one of them has changed."""
    running: dict[Any, tuple[int, float]] = field(default_factory=dict)
    """Ray's reference of a task → number of its trial, and when it was started."""
    crashes: dict[int, int] = field(default_factory=dict)
    """Number of a trial → deaths of its workers in this launch."""
    printed: int = 0
    """Lines of results.jsonl that were printed, or are of an earlier launch."""

    def run(self, numbers: Sequence[int], requests: StopRequests) -> str | None:
        """Run these trials to their ends; returns why it stopped before, or None. Needs a connection to a cluster."""
        import ray

        if not numbers:
            return None
        self.printed = sum(1 for _ in read_results(self.settings.folder))
        judge = (
            ray.remote(TrialJudge)
            .options(num_cpus=0, max_restarts=-1, max_task_retries=-1)
            .remote(self.settings.folder, self.settings.metric.highest, self.settings.early_stopping)
        )
        waiting, stop = deque(numbers), None
        while self.running or (waiting and stop is None):
            while waiting and stop is None and len(self.running) < self.settings.at_once:
                self._start(waiting.popleft(), judge)
            done, _ = ray.wait(list(self.running), num_returns=1, timeout=POLL_SECONDS)
            for reference in done:
                if (again := self._collect(reference)) is not None:
                    waiting.appendleft(again)
            self._print_results()
            if stop is None and (request := requests.poll()) is not None:
                stop = request[0]
                print_line(f"stopping ({stop}): the running trials save and stop; the same command resumes them")
                for number, _ in self.running.values():
                    files.write_text(files.make_folder(self._folder(self.trials[number])) / STOP_FILE, stop)
        return stop

    def end_without_start(self, number: int, outcome: TrialOutcome) -> None:
        """Record the end of a trial that is not started: it was stopped before this launch, or its data cannot be prepared."""
        self._finish(number, outcome, self.trials[number].seconds)

    def _start(self, number: int, judge: Any) -> None:
        import ray

        trial = self.trials[number]
        files.discard(self._folder(trial) / STOP_FILE)  # of an earlier driver; the trial had ended before it saw the file
        resumes = folder_of(self._folder(trial)).is_dir() and any(folder_of(self._folder(trial)).iterdir())
        how = "resumes" if resumes else "starts"
        print_line(f"{trial.name} {how}: {describe_values(trial.values)}")
        self._update(number, status="running", message="", launches=trial.launches + 1)
        reference = ray.remote(**_options(self.settings.each))(train_trial).remote(self.orders[number], judge)
        self.running[reference] = (number, time.monotonic())

    def _collect(self, reference: Any) -> int | None:
        """Record how a trial ended; returns its number if it is to be started again."""
        import ray

        number, started = self.running.pop(reference)
        seconds = self.trials[number].seconds + time.monotonic() - started
        try:
            outcome: TrialOutcome = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            outcome = {"status": "failed", "message": _last_line(error)}
        except ray.exceptions.RayError as error:
            self.crashes[number] = self.crashes.get(number, 0) + 1
            outcome = {"status": "failed", "message": f"its worker died: {_last_line(error)}"}
            if self.crashes[number] <= self.settings.failures:
                print_line(f"{self.trials[number].name}: {outcome['message']}; starting it again")
                self._update(number, status="waiting", message=outcome["message"], seconds=seconds)
                return number
        self._finish(number, outcome, seconds)
        return None

    def _finish(self, number: int, outcome: TrialOutcome, seconds: float) -> None:
        curve = read_curve(self._folder(self.trials[number]), self.settings.metric)
        value, at = summarize_curve(curve, self.settings.metric)
        found = {"step": curve.step, "value": value, "value_step": at, "seconds": round(seconds, 3)}
        trial = self._update(number, **outcome, **found)
        measured = "" if value is None else f", {self.settings.metric.name} {value:.6g}"
        print_line(f"{trial.name} {trial.status} at step {trial.step}{measured}: {trial.message[:SHOWN_CHARACTERS]}")

    def _update(self, number: int, **changes: Any) -> TrialRecord:
        self.trials[number] = self.trials[number].model_copy(update=changes)
        self.save(list(self.trials.values()))
        return self.trials[number]

    def _print_results(self) -> None:
        results: list[Result] = list(read_results(self.settings.folder))
        for result in results[self.printed :]:
            name = self.trials[result.trial].name
            print_line(f"{name} step {result.step}: {self.settings.metric.name} {result.value:.6g}")
        self.printed = len(results)

    def _folder(self, trial: TrialRecord) -> Path:
        return self.settings.folder / trial.name


def _last_line(error: Exception) -> str:
    """The last line of Ray's message, which is the one of the original exception."""
    lines = split_lines(str(error).strip())
    return one_line(lines[-1]) if lines else type(error).__name__
