"""Count the bytes that every rank of this world holds, for each strategy. Launched by strategy_bytes.py.

usage (through accelerate launch): _bytes_of_ranks.py FOLDER, made by strategy_bytes.make; leaves FOLDER/bytes-N.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor

from benchmarks.strategy_bytes import STRATEGIES, config_of
from finetune import assembly, batches, files, loop, world
from finetune.config import Config
from finetune.world import World
from tests.causal_lm.recipe import RECIPE


def measure(joined: World, config: Config) -> dict[str, Any]:
    """Two real steps of several micro-batches a rank. Collective: call on every rank."""
    training, progress = assembly.build(config, RECIPE, joined)
    groups = parameter_groups(training.model)
    lasting: list[int] = []
    training.optimizer.register_step_post_hook(lambda *_: lasting.__setitem__(slice(None), lasting_bytes(training.optimizer)))
    loader = loop.loader_of(training, training.rows)
    todo = batches.steps(batches.Order.of(config), training.rows.lengths, progress.place, epochs=None)
    with passing_bytes(groups) as peak:
        for number, step in zip(range(2), todo, strict=False):
            turns = loader.turns(step.micros)
            assert len(turns) > 1, "one micro-batch would leave nothing to keep between two"
            loop.train_step(training, turns, number)
    loader.close()
    sizes = [sum(each._orig_size.numel() for each in group.fsdp_params) for group in groups]
    return {
        "strategy": training.strategy,
        "precision": config.train.precision,
        "ranks": joined.size,
        "copies": config.parallel.replicate,
        "parameters": sum(sizes),
        "root": sizes[0],
        "block": max(sizes[1:]),
        "each": world.gather(joined, [*lasting, *peak]),
    }


def lasting_bytes(optimizer: torch.optim.Optimizer) -> list[int]:
    """Of this rank when the optimizer has updated: trained weights, reduced gradients, all of the optimizer's state."""
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    return [local_bytes(weights), local_bytes(weight.grad for weight in weights), local_bytes(state)]


def local_bytes(tensors: Iterable[Tensor | None]) -> int:
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors if tensor is not None]
    return sum(part.numel() * part.element_size() for part in local)


def parameter_groups(model: nn.Module) -> list[FSDPParamGroup]:
    """What is gathered and reduced together: the root's, then each block's."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [group for module in sharded if (group := module._get_fsdp_state()._fsdp_param_group) is not None]


@contextmanager
def passing_bytes(groups: list[FSDPParamGroup]) -> Iterator[list[int]]:
    """While open, the largest [gathered weights, whole gradients] that this rank holds at once, each by itself.

    Looked at after each gathering and at each end of a block's backward, before its gradients are reduced: they only grow up to there.
    """
    peak = [0, 0]
    group_size = groups[0]._all_gather_process_group.size()  # of a group of one the buffer is no copy
    gathered, reduced = FSDPParamGroup.wait_for_unshard, FSDPParamGroup.post_backward

    def look() -> None:
        parameters = [each for group in groups for each in group.fsdp_params]
        storages = [tensor.untyped_storage() for each in parameters for tensor in each.all_gather_outputs]
        under_way = [group._all_gather_result.all_gather_output for group in groups if group._all_gather_result is not None]
        storages += [buffer.untyped_storage() for buffer in under_way if group_size > 1]
        gradients = [each.unsharded_accumulated_grad for each in parameters]
        gradients += [each._unsharded_param.grad for each in parameters if hasattr(each, "_unsharded_param")]
        now = sum(storage.size() for storage in storages), local_bytes(gradients)
        peak[:] = [max(pair) for pair in zip(peak, now, strict=True)]

    def gather(group: FSDPParamGroup) -> None:
        gathered(group)
        look()

    def reduce(group: FSDPParamGroup, *unused: Any) -> None:
        look()
        reduced(group, *unused)

    FSDPParamGroup.wait_for_unshard, FSDPParamGroup.post_backward = gather, reduce  # type: ignore[method-assign]
    try:
        yield peak
    finally:
        FSDPParamGroup.wait_for_unshard, FSDPParamGroup.post_backward = gathered, reduced  # type: ignore[method-assign]


def main(folder: Path) -> None:
    joined = world.join((), folder)
    asked = [config_of(folder, strategy, precision, joined.size) for strategy in STRATEGIES for precision in ("fp32", "bf16")]
    found = [measure(joined, config) for config in asked if config.parallel.replicate <= joined.size]
    if joined.is_main:
        files.write_json(folder / f"bytes-{joined.size}.json", found)
    world.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
