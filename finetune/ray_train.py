"""overtone ray-train --recipe NAME --num-workers N [--config FILE …] [--section.key value …]

Trains a recipe on the workers of a Ray cluster, with the same keys, numbers and checkpoints as `accelerate launch finetune/train.py`. Ray
restarts the workers after a failure. Run it on a machine of the cluster; for `ray job submit`, as `python finetune/ray_train.py …`.

  --num-workers N          number of workers, of one GPU or CPU each; N:M uses as many as there are, from N to M, at each start
  --storage DIR            a folder that all machines share; a relative run.dir is inside it (default: the current folder)
  --use-gpu auto           a GPU for each worker: auto (if the cluster has any), true or false
  --ray-address HOST:PORT  which cluster; auto: the one that runs here; local: a new one (default: RAY_ADDRESS, else auto, else local)
  --max-failures N         failures of workers before the run gives up (default 3); an announced preemption does not count
"""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # started as a file: the first entry of the path is finetune/, where `import overtone` finds nothing
    sys.path[0] = next(str(folder) for folder in Path(__file__).resolve().parents if (folder / "overtone").is_dir())

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overtone.finetune.command_lines import export_command, join_words
from overtone.finetune.config_sources import Arguments, parse_arguments
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.monitoring.run_records import is_finished
from overtone.finetune.ray_cluster import cluster_checks, cluster_connection
from overtone.finetune.ray_cluster.verb_arguments import CLUSTER_FLAGS, ClusterOptions, format_arguments, list_local_files
from overtone.finetune.recipe import recipe_arguments
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from overtone.finetune.train import check_inputs, load_checked_recipe, print_help, read_arguments, report_overlay, resolve_config

if TYPE_CHECKING:
    from ray.train import Result

FLAGS = ("num-workers", *CLUSTER_FLAGS)
RECORDS = "ray"
"""Folder in a run's folder for Ray's own files about each launch."""


@dataclass(frozen=True)
class Engine:
    """Ray's settings from the command line."""

    fewest: int
    """Number of workers; up to `most`, if the cluster has them."""
    most: int
    where: ClusterOptions


@catch_user_errors
def main(argv: list[str]) -> int:
    """Train on a Ray cluster as the command line says; returns the exit code. Raises `UserError` for what the user can fix."""
    arguments = parse_arguments(argv, FLAGS)
    if arguments.help:
        print_help(__doc__, arguments)
        return 0
    engine, arguments = split_arguments(arguments)
    given = read_arguments(arguments)
    config = resolve_config(given)
    check_inputs(config)
    report_overlay(given)
    load_checked_recipe(config)
    run_dir = engine.where.storage.absolute() / config.run.dir
    with cluster_connection.connect(engine.where.address):
        each = cluster_checks.choose_worker_resources(engine.where.gpu)
        cluster_checks.require_resources(engine.fewest, each, f"--num-workers {engine.fewest}")
        cluster_checks.check_same_files(run_dir, list_local_files(config.model.source, config.data))
        return report_result(
            train_on_cluster(engine, "GPU" in each, run_dir, [*format_arguments(arguments), f"--run.dir={run_dir}"]), run_dir, config.recipe
        )


def split_arguments(arguments: Arguments) -> tuple[Engine, Arguments]:
    """Split the command line into Ray's settings and the arguments of the training."""
    given = {key: value for key, value in arguments.overrides if key in FLAGS}
    rest = [(key, value) for key, value in arguments.overrides if key not in FLAGS]
    fewest, most = parse_workers(given.get("num-workers"))
    return Engine(fewest=fewest, most=most, where=ClusterOptions.parse(given)), Arguments(arguments.recipe, arguments.files, rest)


def parse_workers(text: str | None) -> tuple[int, int]:
    """Return the fewest and the most workers: `8` or `2:8`."""
    found = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", text or "")
    if found is None or not 1 <= int(found[1]) <= int(found[2] or found[1]):
        raise UserError(f"--num-workers {text}: expected a number (8) or a range (2:8), which takes as many workers as the cluster has")
    return int(found[1]), int(found[2] or found[1])


def train_on_cluster(engine: Engine, gpu: bool, run_dir: Path, arguments: list[str]) -> Result:
    """Train on the cluster; returns Ray's result. Raises `UserError` after too many failures."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    from overtone.finetune.ray_cluster.worker import train_as_worker

    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # else each line is printed twice
    records, launch = files.make_folder(run_dir / RECORDS), time.strftime("%Y%m%d-%H%M%S")
    workers = engine.most if engine.fewest == engine.most else (engine.fewest, engine.most)
    trainer = TorchTrainer(
        train_as_worker,
        train_loop_config={"folder": str(Path.cwd()), "arguments": arguments, "records": str(records / launch)},
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu),
        run_config=RunConfig(name=launch, storage_path=str(records), failure_config=FailureConfig(max_failures=engine.where.failures)),
    )
    try:
        return trainer.fit()
    except TrainingFailedError as error:
        raise UserError(
            f"the workers failed more often than --max-failures {engine.where.failures}; the last time:\n{error}\n"
            f"Tracebacks are in {run_dir}/failure-rank-*.txt; the same command resumes from the newest checkpoint"
        ) from None


def report_result(result: Result, run_dir: Path, recipe: str) -> int:
    """Print the result of the first worker; returns the exit code. Raises its `UserError`."""
    answer: dict[str, Any] = result.return_value
    if "problem" in answer:
        raise UserError(answer["problem"])
    ended = f"{answer['reason']} at step {answer.get('step')}"
    if is_finished(answer["reason"]):
        print_line(f"{ended}; next: {export_command(run_dir, recipe_arguments(recipe))}")
    else:
        print_line(f"{ended}; the same command resumes from the newest checkpoint:\n  {join_words(sys.orig_argv)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
