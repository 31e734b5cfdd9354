"""One trial of a study on a Ray worker: an ordinary run in its own folder, which reports the study's metric and stops on request."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from overtone.finetune.config import Config
from overtone.finetune.config_sources import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.loss_spikes import NotFiniteError
from overtone.finetune.monitoring.run_records import LOG, is_finished, read_log
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.ray_cluster.run_lock_wait import await_release
from overtone.finetune.storage import files
from overtone.finetune.train import check_config, load_checked_recipe
from overtone.finetune.training.run import process_group, train
from overtone.finetune.training.setup import prepare_data
from overtone.finetune.tuning.study_plan import TrialOrder, interval_of
from overtone.finetune.tuning.study_record import Status
from overtone.finetune.tuning.trial_metric import AVERAGED, MetricReader, find_value, parse_metric

Report = Callable[[int, float, bool], str | None]
"""(step, value, whether it is the last step) → why to stop, or None."""


class TrialOutcome(TypedDict):
    """The end of a launch of a trial."""

    status: Status
    message: str


def train_trial(order: TrialOrder, judge: Any) -> TrialOutcome:
    """Train one trial, or resume it; returns how it ended. Runs as a Ray task, in its own process. `judge`: handle of a `TrialJudge`."""
    os.chdir(order["folder"])  # so that relative paths of the driver's command line are valid here
    try:
        config = read_config(order)
        recipe = load_checked_recipe(config)
        await_release(config.run.dir)
        if order["prepared"]:
            link_prepared(Path(order["prepared"]), config.run.dir)
        reader = MetricReader(parse_metric(order["metric"]), interval_of(config.eval.every))
        reports = TrialReports(config.run.dir, reader, partial(ask_judge, judge, order["number"]))
        requests = StopRequests(config.run.dir, config.run.deadline_minutes, reports.get_stop)
        with process_group(config.log.trackers, config.run.dir) as world:
            reason = train(world, config, recipe, requests, reports.handle_event)
    except NotFiniteError as error:
        return {"status": "diverged", "message": str(error)}
    except UserError as error:
        return {"status": "refused", "message": str(error)}
    return describe_outcome(reason, reports.get_stop())


def read_config(order: TrialOrder) -> Config:
    """Return the checked config of an order. Raises `UserError`."""
    config: Config = check_config(parse_arguments([*order["arguments"], f"--run.dir={order['run_dir']}"]))
    return config


def ask_judge(judge: Any, number: int, step: int, value: float, last: bool) -> str | None:
    import ray

    answer: str | None = ray.get(judge.report.remote(number, step, value, last))
    return answer


def describe_outcome(reason: str, stop: str | None) -> TrialOutcome:
    """Return how a run ended that gave this reason; `stop`: the decision of early stopping."""
    if is_finished(reason):
        return {"status": "finished", "message": reason}
    if stop is not None and stop in reason:
        return {"status": "stopped early", "message": stop}
    return {"status": "stopped", "message": reason}


class TrialReports:
    """Listens to the events of a trial, reports the metric, and keeps the answer."""

    def __init__(self, run_dir: Path, reader: MetricReader, report: Report) -> None:
        self._run_dir, self._reader, self._report = run_dir, reader, report
        self._stop: str | None = None
        self._total: int | None = None

    def get_stop(self) -> str | None:
        """Return why to stop; None: continue. Called between two steps."""
        return self._stop

    def handle_event(self, kind: str, step: int, facts: dict[str, Any]) -> None:
        if kind in ("started", "resumed"):
            self._total = facts["total"]
            self._reader.recent.extend(read_recent(self._run_dir, self._reader.metric.name, step))
        elif (value := self._reader.read(kind, step, facts)) is not None:
            self._stop = self._stop or self._report(step, value, step == self._total)


def read_recent(run_dir: Path, name: str, step: int) -> list[float]:
    """Return the last values of a metric of the steps up to `step`, so that a resumed trial averages over the same steps."""
    events = [event for event in read_log(run_dir / LOG) if event["event"] == "step" and event["step"] <= step] if step else []
    found = (find_value(event, name) for event in sorted(events, key=lambda event: int(event["step"])))
    return [value for value in found if value is not None][-AVERAGED:]


def link_prepared(prepared: Path, run_dir: Path) -> None:
    """Give a trial the cache of `prepared`, by hard links. What does not fit the trial is rebuilt by the training: it replaces files and
    never writes into them, so the others keep theirs."""
    source, target = prepared / "cache", run_dir / "cache"
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        is_hidden = any(part.startswith(".") for part in path.relative_to(source).parts)  # locks, unfinished files
        if path.is_file() and not path.is_symlink() and not is_hidden and not place.exists():
            files.link_into(path, place)


def prepare_trial_data(order: TrialOrder) -> str:
    """Fill the cache of the order's run folder; returns the user's mistake, empty without one. Runs as a Ray task."""
    os.chdir(order["folder"])
    try:
        config = read_config(order)
        recipe = load_checked_recipe(config)
        with process_group(config.log.trackers, config.run.dir) as world:
            prepare_data(config, recipe, world)
    except UserError as error:
        return str(error)
    return ""
