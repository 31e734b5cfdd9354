"""Time the same optimizer steps on however many ranks there are. Launched by growth.py.

usage (through accelerate launch): _steps_of_ranks.py FOLDER STEPS, the folder made by growth.make; leaves FOLDER/steps-N.json
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from overtone.finetune.distributed import process_group
from overtone.finetune.storage import files
from overtone.finetune.training import loop, setup
from overtone.finetune.training.step import make_loader, train_step
from tests.causal_lm.recipe import RECIPE
from workshop.benchmarks._timing import WARM_UP
from workshop.benchmarks.growth import config_of


def main() -> None:
    torch.set_num_threads(1)
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    joined = process_group.join((), folder)
    training, progress = setup.build(config_of(folder, f"ranks-{joined.size}"), RECIPE, joined)
    loader = make_loader(training, training.rows)
    step = next(loop.steps_left(training, progress))
    turns = loader.turns(step.micros)
    found = []
    for number in range(WARM_UP + count):
        process_group.sum_over_ranks(joined, [0.0])
        began, busy = time.perf_counter(), time.process_time()
        train_step(training, turns, number)
        each = process_group.gather_from_ranks(joined, [time.perf_counter() - began, time.process_time() - busy])
        found.append({"tokens": step.tokens, "wall": max(wall for wall, _ in each), "busy": sum(busy for _, busy in each)})
    loader.close()
    if joined.is_main:
        files.write_json(folder / f"steps-{joined.size}.json", found[WARM_UP:])
    process_group.leave()


if __name__ == "__main__":
    main()
