"""Resume a run and train one step, timed; or, where there is no checkpoint yet, train one step and save. Launched by resume_time.py.

usage (through accelerate launch): _resuming_of_ranks.py FOLDER; leaves FOLDER/resumed-N.json
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
import torch

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.data import batching
from overtone.finetune.distributed import process_group
from overtone.finetune.storage import files
from overtone.finetune.training import loop, setup
from overtone.finetune.training.loop import Progress
from overtone.finetune.training.step import Training, make_loader, train_step
from tests.causal_lm.recipe import RECIPE
from workshop.benchmarks.resume_time import LOADS, config_of


def step_once(training: Training, progress: Progress) -> batching.Place:
    """Collective: call on every rank."""
    loader = make_loader(training, training.rows)
    step = next(loop.steps_left(training, progress))
    train_step(training, loader.turns(step.micros), progress.step)
    loader.close()
    return step.after


def save(training: Training, after: batching.Place) -> None:
    """The checkpoint that later launches go on from. Collective: call on every rank."""
    saver = checkpoint.Saver(training.world, training.config.run.dir, keep=2, asynchronous=False)
    loop.save(training, Progress(1, after), saver)
    saver.finish()
    saver.close()


def load_seconds(training: Training) -> float:
    """Median, slowest rank: find the newest good checkpoint, every byte verified, and read it. Collective: call on every rank."""
    taken = []
    for _ in range(LOADS):
        process_group.sum_over_ranks(training.world, [0.0])
        began = time.process_time()
        loop.resume(training, loop.find_newest(training.config.run.dir, training.config.checkpoint.copy_to, training.world))
        taken.append(max(process_group.gather_from_ranks(training.world, time.process_time() - began)))
    return median(taken)


def so_far(training: Training) -> float:
    """Processor seconds of the launcher and of the slowest rank after it, since they were started. Collective: call on every rank."""
    launcher = psutil.Process().parent().cpu_times()
    return launcher.user + launcher.system + max(process_group.gather_from_ranks(training.world, time.process_time()))


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    joined = process_group.join((), folder)
    training, progress = setup.build(config_of(folder), RECIPE, joined)
    after = step_once(training, progress)
    found = {"first": so_far(training)}
    if progress.step:
        found["load"] = load_seconds(training)
    else:
        save(training, after)
    if joined.is_main:
        tensors = checkpoint.training_tensors(training.model, training.optimizer, training.loaded.buffers)
        found["bytes"] = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        files.write_json(folder / f"resumed-{joined.size}.json", [found])
    process_group.leave()


if __name__ == "__main__":
    main()
