"""What finetune.step.train_step costs beyond a bare loop: the same model, weights, batch and AdamW without sharding, votes and checks.

One process, so that no time is spent on communication; what remains is the work of the processor around the arithmetic. It does not
grow with the model's width or the batch, so the ratio is largest on a tiny model and falls with the work in a step.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import _table, _timing, _voice
from finetune import assembly, batches, models, optim, world
from finetune.config import Config
from finetune.recipe import Batch
from finetune.step import train_step
from finetune.world import World
from recipes.voice_clone.recipe import RECIPE

COLUMNS = ("model", "clips × frames", "positions a step", "our step / bare loop")
Step = Callable[[], float]


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    sizes, rounds = ([("nano", 2, 10)], 3) if flags.quick else ([("nano", 4, 50), ("mini", 4, 50), ("mini", 16, 100)], 40)
    with tempfile.TemporaryDirectory() as folder:
        joined = world.join((), Path(folder))
        rows = [compare(joined, Path(folder), size, clips, frames, rounds) for size, clips, frames in sizes]
        world.leave()
    note = f"One process, one thread, fp32; ratio of median processor times of {rounds} steps each, in turns."
    _table.publish("step_overhead", flags, COLUMNS, rows, note)


def compare(joined: World, folder: Path, size: str, clips: int, frames: int, rounds: int) -> list[object]:
    """One line of the table."""
    config = _voice.run_config(_voice.make(folder / f"{size}-{clips}", size, clips, frames), "run")
    ours, batch = our_step(joined, config)
    bare = bare_step(config, batch, torch.device("cpu"))
    if any(abs(ours() - bare()) > 1e-5 for _ in range(2)):
        raise SystemExit("the two loops do not train alike, so their times say nothing")
    taken = _timing.medians({"ours": ours, "bare": bare}, rounds)
    positions = int(batch.tensors["valid"].sum())
    return [size, f"{clips} × {frames}", positions, f"{taken['ours'] / taken['bare']:.2f}"]


def our_step(joined: World, config: Config) -> tuple[Step, Batch]:
    """The step as it is launched, and its only batch."""
    training, progress = assembly.build(config, RECIPE, joined)
    step = next(batches.steps(batches.Order.of(config), training.rows.lengths, progress.place, epochs=None))
    loader = batches.Loader(training.rows, RECIPE, training.loaded.processor, rank=0, size=1)
    turns = loader.turns(step.micros)
    loader.close()
    assert len(turns) == 1
    return lambda: train_step(training, turns, step=0)["loss"], turns[0].batch


def bare_step(config: Config, batch: Batch, device: torch.device) -> Step:
    """What one would write by hand for this model."""
    loaded = RECIPE.load(config)
    model: Any = loaded.model
    models.materialise(model, loaded.base, loaded.buffers, device, config.run.seed)
    optimizer = optim.make_optimizer(model, config.train)
    weights, half = model.weights, config.train.precision == "bf16"

    def step() -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            sums = model({name: tensor.to(device) for name, tensor in batch.tensors.items()})
        loss = sum(weight * sums[name] / batch.targets[name] for name, weight in weights.items() if weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


if __name__ == "__main__":
    main()
