"""Time our step, a bare loop and accelerate's on however many ranks there are. Launched by step_overhead.py.

usage (through accelerate launch): _overhead_of_ranks.py FOLDER MODEL=ROUNDS…, where step_overhead.py has made FOLDER/MODEL; leaves
FOLDER/overhead-N.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from overtone.finetune.config import Config
from overtone.finetune.data import batching
from overtone.finetune.distributed import process_group
from overtone.finetune.distributed.process_group import World
from overtone.finetune.recipe import Batch
from overtone.finetune.storage import files
from overtone.finetune.training import setup
from overtone.finetune.training.step import train_step
from overtone.recipes.voice_clone.recipe import RECIPE
from workshop.benchmarks import _timing, _voice
from workshop.benchmarks._by_hand import Step, accelerate_step, bare_step, check_equal_losses, load_filled_model, optimizer_of


def measure(joined: World, folder: Path, rounds: int) -> dict[str, object]:
    """Processor seconds of each round, the mean over the ranks, which all train on the same clips. Collective: call on every rank."""
    config = _voice.run_config(folder, f"run-{joined.size}")
    ours, batch = our_step(joined, config)
    bare, prepared = load_filled_model(config, joined.device), load_filled_model(config, joined.device)
    acts = {
        "ours": ours,
        "bare": bare_step(bare, optimizer_of(bare, config), config, [batch], joined.size),
        "accelerate": accelerate_step(prepared, config, batch),
    }
    for _ in range(2):
        check_equal_losses({name: act() for name, act in acts.items()}, 1e-4)
    taken = _timing.time_in_turns(acts, rounds, warm_up=0)
    each = {
        name: [mean(ranks) for ranks in zip(*process_group.gather_from_ranks(joined, seconds), strict=True)]
        for name, seconds in taken.items()
    }
    return {"ranks": joined.size, "positions": int(batch.tensors["valid"].sum()), **each}


def our_step(joined: World, config: Config) -> tuple[Step, Batch]:
    """The step as it is launched, and its only batch."""
    training, progress = setup.build(config, RECIPE, joined)
    step = next(batching.steps(training.order, training.rows.lengths, progress.place, epochs=None))
    loader = batching.Loader(training.rows, RECIPE, rank=0, size=1)
    turns = loader.turns(step.micros)
    loader.close()
    assert len(turns) == 1
    return lambda: train_step(training, turns, step=0)["loss"], turns[0].batch


def main() -> None:
    torch.set_num_threads(1)
    folder, models = Path(sys.argv[1]), [word.partition("=") for word in sys.argv[2:]]
    joined = process_group.join((), folder)
    found = [{"model": model, **measure(joined, folder / model, int(rounds))} for model, _, rounds in models]
    if joined.is_main:
        files.write_json(folder / f"overhead-{joined.size}.json", found)
    process_group.leave()


if __name__ == "__main__":
    main()
