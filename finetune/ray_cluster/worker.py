"""One Ray worker: the training of `accelerate launch`, with checkpoints reported to Ray, and a stop when Ray announces a preemption.

Ray starts and joins the processes, and restarts them after a failure, with fewer workers if need be. `finetune/training/run.py` decides
what they train and where they resume. A user's mistake is returned as a result, because Ray would retry what it sees as a failure.
"""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import ray.train
from pydantic import JsonValue

from overtone.finetune.config_sources import parse_arguments
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.ray_cluster.run_lock_wait import await_release
from overtone.finetune.storage import files
from overtone.finetune.train import check_config, load_checked_recipe
from overtone.finetune.training.run import process_group, train

LEAVING = "notice from Ray that a machine is about to be taken away"


def train_as_worker(order: dict[str, Any]) -> dict[str, Any]:
    """Train as one worker of a group; returns why it ended and the last metrics, or the user's mistake.

    `order`: `folder` (working directory), `arguments` of the training, `records` (folder for Ray's records). Collective: Ray calls it on
    every worker.
    """
    os.chdir(order["folder"])  # so that relative paths of the driver's command line are valid here
    reports = Reports(Path(order["records"]))
    try:
        config = check_config(parse_arguments(order["arguments"]))
        recipe = load_checked_recipe(config)
        if ray.train.get_context().get_world_rank() == 0:
            await_release(config.run.dir)
        with process_group(config.log.trackers, config.run.dir) as world:
            train(world, config, recipe, StopRequests(config.run.dir, config.run.deadline_minutes, find_preemption), reports.handle_event)
    except UserError as error:
        return {"problem": str(error)}
    if LEAVING in reports.reason:
        threading.Event().wait()  # all is saved; returning would mean that the run is done, and raising would count as a failure
    return {"reason": reports.reason, **reports.at(math.inf)}


def find_preemption() -> str | None:
    """`LEAVING` if any machine of the group will be preempted, otherwise None. Collective: call on every worker."""
    return None if ray.train.get_preemption_info() is None else LEAVING


class Reports:
    """Listens to the events of this worker, and reports to Ray when a checkpoint is committed.

    It does not report every step: a report waits for all workers, and for Ray, which polls every two seconds.
    """

    def __init__(self, records: Path) -> None:
        self._records = records
        self._numbers: dict[int, dict[str, Any]] = {}
        """Step → numbers of that step, since a checkpoint may be committed some steps after the one that it contains."""
        self.reason = ""
        """The reason why training ended."""

    def at(self, step: float) -> dict[str, Any]:
        """Return the last metrics of training and evaluation that were logged up to `step`."""
        return {name: value for number in sorted(self._numbers) if number <= step for name, value in self._numbers[number].items()}

    def handle_event(self, kind: str, step: int, facts: dict[str, JsonValue]) -> None:
        if kind in ("step", "evaluation"):
            self._numbers.setdefault(step, {"step": step}).update(facts)
        elif kind == "stopped":
            self.reason = str(facts["reason"])
        elif kind == "committed":
            self._report(step, str(facts["folder"]))

    def _report(self, step: int, folder: str) -> None:
        """Report metrics and a small file that names the checkpoint; Ray does not store or prune checkpoints. Collective: call on every
        worker."""
        named = None
        if ray.train.get_context().get_world_rank() == 0:
            files.write_json(files.make_folder(self._records / folder) / "checkpoint.json", {"folder": folder, "step": step})
            named = ray.train.Checkpoint.from_directory(str(self._records / folder))
        numbers = self.at(step)
        self._numbers = {step: numbers, **{number: later for number, later in self._numbers.items() if number > step}}
        ray.train.report(numbers, named, checkpoint_upload_mode=ray.train.CheckpointUploadMode.NO_UPLOAD)
