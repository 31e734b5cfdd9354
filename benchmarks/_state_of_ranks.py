"""Count the bytes that every rank of this world holds, for each strategy. Launched by state_bytes.py.

usage (through accelerate launch): _state_of_ranks.py FOLDER, made by _voice.make; leaves FOLDER/state-N.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from benchmarks import _voice
from finetune import assembly, batches, files, loop, world
from finetune.world import World
from recipes.voice_clone.recipe import RECIPE


def measure(joined: World, folder: Path, strategy: str) -> dict[str, Any]:
    """One real step, counted when the optimizer has updated and the gradients are still there. Collective: call on every rank."""
    asked = _voice.run_config(folder, f"run-{strategy}-{joined.size}", micro_tokens=100, global_batch_tokens=200)
    config = asked.model_copy(update={"parallel": asked.parallel.model_copy(update={"strategy": strategy})})
    training, progress = assembly.build(config, RECIPE, joined)
    held: list[int] = []
    training.optimizer.register_step_post_hook(lambda *_: held.extend(held_bytes(training.optimizer)))
    step = next(batches.steps(batches.Order.of(config), training.rows.lengths, progress.place, epochs=None))
    loader = batches.Loader(training.rows, RECIPE, training.loaded.processor, joined.rank, joined.size)
    loop.train_step(training, loader.turns(step.micros), 0)
    loader.close()
    parameters = sum(parameter.numel() for parameter in training.model.parameters() if parameter.requires_grad)
    return {"strategy": strategy, "ranks": joined.size, "parameters": parameters, "each": world.gather(joined, held)}


def held_bytes(optimizer: torch.optim.Optimizer) -> tuple[int, int, int]:
    """Of this rank: trained weights, their gradients, and all of the optimizer's state."""
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return local_bytes(weights), local_bytes(weight.grad for weight in weights), local_bytes(moments)


def local_bytes(tensors: Iterable[Tensor | None]) -> int:
    """This rank's own parts alone."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors if tensor is not None]
    return sum(part.numel() * part.element_size() for part in local)


if __name__ == "__main__":
    joined, folder = world.join((), Path(sys.argv[1])), Path(sys.argv[1])
    found = [measure(joined, folder, strategy) for strategy in ("ddp", "fsdp")]
    if joined.is_main:
        files.write_json(folder / f"state-{joined.size}.json", found)
    world.leave()
