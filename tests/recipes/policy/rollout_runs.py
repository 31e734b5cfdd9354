"""Runs of recipes that learn from rewards, in the process of a test."""

from __future__ import annotations

from typing import Any

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import Config
from overtone.finetune.distributed.process_group import World
from overtone.finetune.monitoring import stop_requests
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.recipe import Recipe
from overtone.finetune.training import setup
from overtone.finetune.training.loop import fit
from tests.finetune import tiny


def run_here(config: Config, recipe: Recipe, world: World) -> list[dict[str, Any]]:
    """Train in this process; returns the events of the steps."""
    tiny.let_go(config.run.dir)
    training, progress = setup.build(config, recipe, world)
    saver = checkpoint.Saver(world, config.run.dir, config.checkpoint.keep, config.checkpoint.asynchronous)
    events = Events(config.run.dir, world.accelerator, training.total, progress.step, {})
    with stop_requests.StopRequests() as requests:
        fit(training, progress, events, saver, requests)
    saver.close()
    events.close()
    assert training.rollouts is not None
    training.rollouts.worker.close()
    tiny.let_go(config.run.dir)
    return [event for event in read_log(config.run.dir / "log.jsonl") if event["event"] == "step"]
