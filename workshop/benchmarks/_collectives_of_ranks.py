"""Count what the ranks of this process group send each other in a step, for each strategy. Launched by communication.py.

usage (through accelerate launch): _collectives_of_ranks.py FOLDER CASES; the folder is made by strategy_bytes.make, the cases are a JSON
list as strategy_bytes.cases has them; leaves FOLDER/collectives-N.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from overtone.finetune.config import Config
from overtone.finetune.data import batching
from overtone.finetune.distributed import process_group, sharding
from overtone.finetune.distributed.process_group import World
from overtone.finetune.hardware.gpu_specs import Cluster, Gpu
from overtone.finetune.planning.memory import Arrangement, outline_model
from overtone.finetune.planning.parallelism_planner import HOP, Work, estimate_communication, estimate_tensor_traffic
from overtone.finetune.storage import files
from overtone.finetune.training import setup
from overtone.finetune.training.step import make_loader, train_step
from tests.causal_lm.recipe import RECIPE
from workshop.benchmarks.strategy_bytes import config_of

PASSES = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}
"""Number of times that a ring passes a tensor around, less one rank's share of it."""
KINDS = {
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "c10d::allreduce_": "all-reduce",
    "_c10d_functional::all_reduce": "all-reduce",
    "_c10d_functional::all_gather_into_tensor": "all-gather",
    "_c10d_functional::reduce_scatter_tensor": "reduce-scatter",
}


@dataclass(frozen=True)
class Sent:
    """A collective."""

    kind: str
    ranks: int
    elements: int
    """Elements of the whole tensor, which each rank has before or after."""
    width: int
    """Bytes of an element."""

    @property
    def size(self) -> float:
        """Bytes that a rank sends, on a ring."""
        return PASSES[self.kind] * (self.ranks - 1) / self.ranks * self.elements * self.width


class Collectives(TorchDispatchMode):
    """While open, notes every collective among more than one rank, but for single numbers (norms, counts) and the votes' group."""

    def __init__(self, votes: dist.ProcessGroup) -> None:
        super().__init__()
        self.sent: list[Sent] = []
        self._votes = votes.group_name

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        kind = KINDS.get(function._schema.name)
        if kind is not None:
            group, whole = _group(args), max(_tensors((*args, result)), key=Tensor.numel)
            if group.size() > 1 and group.group_name != self._votes and whole.numel() > 1:
                self.sent.append(Sent(kind, group.size(), whole.numel(), whole.element_size()))
        return result


def _group(args: Any) -> dist.ProcessGroup:
    """Return the group among an operation's arguments: the last one that is a name, or the first one that is an object of torch's own."""
    if names := [each for each in args if isinstance(each, str)]:
        return _resolve_process_group(names[-1])
    return dist.ProcessGroup.unbox(next(each for each in args if isinstance(each, torch.ScriptObject)))


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(list(values)) if isinstance(leaf, Tensor)]


def measure(joined: World, config: Config) -> dict[str, Any]:
    """The second of two real steps of several micro-batches a rank. Collective: call on every rank."""
    loaded = RECIPE.load(config)
    of = outline_model(loaded.model, loaded.blocks, sharding.compute_dtype(config.train.precision), plans=loaded.tensor_plans)
    training, progress = setup.build(config, RECIPE, joined)
    loader = make_loader(training, training.rows)
    todo = batching.steps(training.order, training.rows.lengths, progress.place, epochs=None)
    for number, step in zip(range(2), todo, strict=False):
        turns = loader.turns(step.micros)
        with Collectives(joined.votes) as collectives:
            train_step(training, turns, number)
    loader.close()
    arrangement = Arrangement(training.strategy, joined.size, config.parallel.replicate, config.parallel.tensor)
    positions = [turn.batch.tensors["ids"].numel() for turn in turns]
    return {
        "strategy": str(arrangement),
        "precision": config.train.precision,
        "ranks": joined.size,
        "turns": len(turns),
        "kinds": {kind: sum(each.kind == kind for each in collectives.sent) for kind in PASSES},
        "volume": sum(PASSES[each.kind] * each.elements for each in collectives.sent) / of.total,
        "bytes": sum(each.size for each in collectives.sent),
        "hops": sum(each.ranks - 1 for each in collectives.sent),
        "simulated": simulate_traffic(
            Work(of, refuse_activations, 0, 0, sharding.compute_dtype(config.train.precision).itemsize, "none"), arrangement, positions
        ),
    }


def simulate_traffic(work: Work, arrangement: Arrangement, positions: list[int]) -> list[float]:
    """Simulated bytes that a rank sends in a step with micro-batches of `positions`, and hops that it waits for.

    Over links of a byte a second the simulated seconds are bytes; over links that take no time they are hops."""
    answers = []
    for link, unit in ((1e-9, 1.0), (float("inf"), HOP)):
        cluster = Cluster("links", Gpu(0, 0, link, link * arrangement.ranks), arrangement.ranks)
        seconds, _ = estimate_communication(work, cluster, arrangement, len(positions), 0.0)
        answers.append(
            (seconds + sum(estimate_tensor_traffic(replace(work, micro_tokens=each), cluster, arrangement) for each in positions)) / unit
        )
    return answers


def refuse_activations(*_: Any) -> Any:
    raise AssertionError("what is sent does not depend on activations")


def main(folder: Path, cases: list[tuple[str, int, str]]) -> None:
    joined = process_group.join((), folder)
    configs = [config_of(folder, *case, joined.size) for case in cases]
    found = [measure(joined, config) for config in configs if max(config.parallel.replicate, config.parallel.tensor) <= joined.size]
    if joined.is_main:
        files.write_json(folder / f"collectives-{joined.size}.json", found)
    process_group.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
