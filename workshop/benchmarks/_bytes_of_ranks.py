"""Count the bytes that every rank of this world holds, for each strategy. Launched by strategy_bytes.py.

usage (through accelerate launch): _bytes_of_ranks.py FOLDER, made by strategy_bytes.make; leaves FOLDER/bytes-N.json
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from overtone.finetune.config import Config
from overtone.finetune.data import batching
from overtone.finetune.distributed import process_group
from overtone.finetune.distributed.ddp_replication import Bucket
from overtone.finetune.distributed.process_group import World
from overtone.finetune.distributed.sharding import local_shard, replica_of
from overtone.finetune.storage import files
from overtone.finetune.training import setup
from overtone.finetune.training.step import make_loader, train_step
from tests.causal_lm.recipe import RECIPE
from workshop.benchmarks.strategy_bytes import cases, config_of


def measure(joined: World, config: Config) -> dict[str, Any]:
    """Two real steps of several micro-batches a rank. Collective: call on every rank."""
    training, progress = setup.build(config, RECIPE, joined)
    groups = parameter_groups(training.model)
    lasting: list[int] = []
    training.optimizer.register_step_post_hook(lambda *_: lasting.__setitem__(slice(None), lasting_bytes(training.optimizer)))
    loader = make_loader(training, training.rows)
    todo = batching.steps(training.order, training.rows.lengths, progress.place, epochs=None)
    with passing_bytes(groups) if groups else waiting_bytes(training.model) as peak:
        for number, step in zip(range(2), todo, strict=False):
            turns = loader.turns(step.micros)
            assert len(turns) > 1, "one micro-batch would leave nothing to keep between two"
            train_step(training, turns, number)
    loader.close()
    sizes = [sum(each._orig_size.numel() for each in group.fsdp_params) for group in groups] or [0, 0]
    blocks = [module for module in training.model.modules() if groups and isinstance(module, training.loaded.blocks)]
    group, embedding = config.parallel.tensor, training.model.get_submodule("model.embed_tokens")
    return {
        "strategy": training.strategy if group == 1 else f"{training.strategy} × {group}",
        "tensor": group,
        "words": training.model.get_parameter("lm_head.weight").shape[0],
        "precision": config.train.precision,
        "ranks": joined.size,
        "copies": config.parallel.replicate,
        "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
        "root": sizes[0],
        "block": max((sum(each._orig_size.numel() for each in group_of(block).fsdp_params) for block in blocks), default=0),
        "largest": max(sizes[1:]),
        "embedding": 0 if isinstance(embedding, FSDPModule) else sum(parameter.numel() for parameter in embedding.parameters()),
        "alike": sum(parameter.numel() for block in blocks for parameter in block.parameters() if parameter.dim() == 1),
        "each": process_group.gather_from_ranks(joined, [*lasting, *peak]),
    }


def lasting_bytes(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return the bytes of this rank after the optimizer's update: trained weights, reduced gradients, all of the optimizer's state."""
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    return [local_bytes(weights), local_bytes(weight.grad for weight in weights), local_bytes(state)]


def local_bytes(tensors: Iterable[Tensor | None]) -> int:
    local = [local_shard(tensor) for tensor in tensors if tensor is not None]
    return sum(part.numel() * part.element_size() for part in local)


def parameter_groups(model: nn.Module) -> list[FSDPParamGroup]:
    """Return what is gathered and reduced together: the root's, then each block's. None under `ddp`."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    return [group_of(module) for module in sharded]


def group_of(module: Any) -> FSDPParamGroup:
    group = module._get_fsdp_state()._fsdp_param_group
    assert isinstance(group, FSDPParamGroup)
    return group


@contextmanager
def passing_bytes(groups: list[FSDPParamGroup]) -> Iterator[list[int]]:
    """While open, the largest [gathered weights, whole gradients] that this rank holds at once, each by itself.

    Looked at after each gathering and at each end of a block's backward, before its gradients are reduced: they only grow up to there.
    """
    peak = [0, 0]
    several = [group for group in groups if group._all_gather_process_group.size() > 1]  # for one rank the buffer is no copy
    gathered, reduced = FSDPParamGroup.wait_for_unshard, FSDPParamGroup.post_backward

    def look() -> None:
        parameters = [each for group in groups for each in group.fsdp_params]
        storages = [tensor.untyped_storage() for each in parameters for tensor in each.all_gather_outputs]
        under_way = [group._all_gather_result.all_gather_output for group in several if group._all_gather_result is not None]
        storages += [buffer.untyped_storage() for buffer in under_way]
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

    FSDPParamGroup.wait_for_unshard, FSDPParamGroup.post_backward = gather, reduce
    try:
        yield peak
    finally:
        FSDPParamGroup.wait_for_unshard, FSDPParamGroup.post_backward = gathered, reduced


@contextmanager
def waiting_bytes(model: nn.Module) -> Iterator[list[int]]:
    """As `passing_bytes`, under `ddp`: copies in the compute type, and gradients that wait for the others of their bucket."""
    replica, peak = replica_of(model), [0, 0]
    assert replica is not None
    collect = Bucket.collect

    def look(bucket: Bucket) -> None:
        copies = [weight.working for weight in replica.weights if weight.working.dtype != weight.master.dtype]
        now = local_bytes(copies), local_bytes(weight.working.grad for weight in replica.weights)
        peak[:] = [max(pair) for pair in zip(peak, now, strict=True)]
        collect(bucket)

    Bucket.collect = look
    try:
        yield peak
    finally:
        Bucket.collect = collect


def main(folder: Path) -> None:
    joined = process_group.join((), folder)
    configs = [config_of(folder, *case, joined.size) for case in cases()]
    found = [measure(joined, config) for config in configs if max(config.parallel.replicate, config.parallel.tensor) <= joined.size]
    if joined.is_main:
        files.write_json(folder / f"bytes-{joined.size}.json", found)
    process_group.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
