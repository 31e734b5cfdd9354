"""`checkpoint.best_by: sample/NAME` on all ranks: the end by `train.patience`, and waiting for measurements.

Rank 0 owns the sampling process and the measurements. What it finds is sent to every rank before anything depends on it, so that all of
them take the same step next.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from overtone.finetune.config import Config
from overtone.finetune.distributed.process_group import World, run_on_main
from overtone.finetune.errors import format_count
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.monitoring.run_records import FINISHED_EARLY
from overtone.finetune.monitoring.stop_requests import AgreedStop, StopRequests, agree_to_stop
from overtone.finetune.training.generation_during_training import SECONDS_BETWEEN_LOOKS, Sampler

MOST_PENDING = 4
"""Checkpoints that may wait for their measurement while training continues. Each takes disk space until it is measured."""


@dataclass(frozen=True)
class SampleChoice:
    """The choice of a run by a metric of its samples."""

    world: World
    config: Config
    sampler: Sampler
    events: Events

    def explain_early_end(self, patience: int) -> str | None:
        """Return the reason for which `train.patience` ends the run, or None. Collective: call on every rank."""
        _, stale, value, ended = run_on_main(self.world, self.sampler.assess)
        if not ended:
            return None
        best = "any value" if value is None else f"a better value than {value:.6g}"
        metric = (self.config.checkpoint.best_by or "").partition(" ")[0]
        samples = format_count(stale, "measured sample")
        return f"{FINISHED_EARLY}: {samples} without {best} of {metric} (train.patience: {patience})"

    def wait(self, requests: StopRequests, most: int) -> AgreedStop | None:
        """Wait until at most `most` checkpoints are still to be measured, or the patience is used up, or a stop is requested on any rank;
        returns that stop. Collective: call on every rank."""
        waiting = False
        while True:
            pending, _, _, ended = run_on_main(self.world, self.sampler.assess)
            if ended or pending <= most:
                return None
            if stop := agree_to_stop(self.world, requests, self.config.checkpoint.grace_seconds):
                return stop
            if not waiting:
                waiting = True
                purpose = "" if most == 0 else f"; training continues when {most} are left"
                self.events.say(
                    f"waiting until the samples of {format_count(pending, 'checkpoint')} are measured{purpose} (the same command continues "
                    "after an interruption)"
                )
            time.sleep(SECONDS_BETWEEN_LOOKS)
            self.sampler.advance(last=most == 0)
