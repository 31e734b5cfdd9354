"""Estimate: at which model size and number of GPUs pipeline stages would pay over fsdp, hsdp and tensor parallelism.

Without stages, a step is that of finetune/planning/parallelism_planner.py. With p stages, each stage is planned as a model of 1/p of the
blocks on 1/p of the machines; then come the bubble, p - 1 turns of a stage in which a GPU waits (1F1B, Narayanan et al. 2021,
arXiv:2104.04473), and the states that are sent between stages. Overtone has no pipeline stages.
workshop/lab_book/scaling.md states every assumption.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.hardware.gpu_specs import Cluster
from overtone.finetune.planning.activation_memory import Activations, Recomputing
from overtone.finetune.planning.parallelism_planner import HOP, LayoutEstimate, Work, estimate_layout, list_arrangements, rank_layouts
from workshop.benchmarks import _table
from workshop.benchmarks.scaling import FABRICS, LLAMA_8B, MACHINE, Model, cluster_of, work_of

SEQUENCE, BATCH = 8192, 2**22
"""Positions of a micro-batch, which is one sequence, and of a step: 512 sequences, as Llama 3 was pretrained at first."""
COUNTS = (64, 256, 512, 1024, 2048, 4096)
STAGES = (2, 4, 8, 16)
PAYS = 1.1
"""A step without stages must take so many times as long before building them is worth it."""
SHAPES = {
    "Llama-3-8B": LLAMA_8B,
    "Llama-3-70B": LLAMA_8B | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "Llama-3-405B": LLAMA_8B | {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128},
}
"""From the config.json of the released models."""
MODELS = tuple(Model(name, "llm_sft", shape, SEQUENCE, BATCH, "full") for name, shape in SHAPES.items())
COLUMNS = (
    "model", "GPUs", "between machines, GB/s", "best without stages", "s", "waits", "best with stages", "s", "bubble", "without / with",
    "pays",
)  # fmt: skip
NOTE = (
    f"A step of {BATCH:,} positions in sequences of {SEQUENCE:,}, full activation checkpointing. Waits: share of the step in which a GPU "
    f"waits for others. Bubble: likewise, for the first and last micro-batches of a pipeline. “–”: nothing fits. Pays: “yes” from "
    f"{PAYS:g} on, or if nothing fits without stages."
)


@dataclass(frozen=True)
class PipelinedStep:
    """The best layout with stages."""

    stages: int
    layout: LayoutEstimate
    """Layout of one stage."""
    seconds: float
    bubble: float
    """Seconds of `seconds`."""


@cache
def plan_stage(work: Work, stages: int) -> Work:
    """A stage of a model: its share of the blocks and operations, and all of the root (embedding and head), as the first or last one has.

    Under 1F1B the first stage keeps the activations of as many micro-batches as there are stages, each of its share of the blocks: together
    as much as one micro-batch of all blocks.
    """
    units = work.outline.units[: -(-len(work.outline.units) // stages)]
    outline = replace(work.outline, units=units, blocks=-(-work.outline.blocks // stages))

    def activations(recomputing: Recomputing, tensor: int) -> Activations:
        traced = work.activations(recomputing, tensor)
        return replace(traced, flops=traced.flops / stages)

    return replace(work, outline=outline, activations=activations)


def best_layout(work: Work, cluster: Cluster) -> LayoutEstimate | None:
    """The fastest layout that fits; of `hsdp`, with a copy for each machine."""
    among = [each for each in list_arrangements(cluster, work.refuses_tensor) if each.replicate in (1, cluster.nodes)]
    best = rank_layouts([estimate_layout(work, cluster, each, work.recomputing) for each in among])[0]
    return best if best.fits else None


def pipeline_step(work: Work, cluster: Cluster, stages: int) -> PipelinedStep | None:
    """The fastest step with so many stages, each on its own machines; None if there are too few machines, or none fits."""
    if cluster.nodes < stages:
        return None
    own = Cluster(cluster.name, cluster.gpu, cluster.gpus, cluster.nodes // stages)
    stage = plan_stage(work, stages)
    found = [
        add_bubble(work, cluster, estimate_layout(stage, own, each, work.recomputing), stages)
        for each in list_arrangements(own, work.refuses_tensor)
        if each.replicate in (1, own.nodes)
    ]
    return min((each for each in found if each.layout.fits), key=lambda each: each.seconds, default=None)


def add_bubble(work: Work, cluster: Cluster, layout: LayoutEstimate, stages: int) -> PipelinedStep:
    """A step of all stages from that of one. A rank sends its states [positions, H] to the next machine and gets their gradients; the
    GPUs of a machine share its network. This is not hidden in the first and last turns, and is counted in all."""
    turns = -(-work.micro_batches // layout.groups)
    bubble = (stages - 1) * layout.seconds.computing / turns
    states = work.micro_tokens * work.outline.hidden * work.compute / layout.arrangement.tensor
    passing = 2 * (turns + stages - 1) * (states / (cluster.gpu.fabric * 1e9 / cluster.gpus) + HOP)
    return PipelinedStep(stages, layout, layout.seconds.total + bubble + passing, bubble)


def rows(counts: tuple[int, ...], models: tuple[Model, ...] = MODELS) -> Iterator[list[str]]:
    for model in models:
        for fabric in FABRICS:
            for gpus in counts:
                yield row(model, cluster_of(gpus, fabric))


def row(model: Model, cluster: Cluster) -> list[str]:
    work = work_of(model)
    plain = best_layout(work, cluster)
    staged = min(
        (found for stages in STAGES if (found := pipeline_step(work, cluster, stages)) is not None),
        key=lambda each: each.seconds,
        default=None,
    )
    first = [model.name, f"{cluster.ranks}", f"{cluster.gpu.fabric:g}"]
    without = ["–", "", ""] if plain is None else [str(plain.arrangement), f"{plain.seconds.total:.3g}", f"{share_of_waiting(plain):.0%}"]
    if staged is None:
        return [*first, *without, "–", "", "", "", "no" if plain else ""]
    name = f"{staged.stages} stages of {staged.layout.arrangement}"
    ratio = plain.seconds.total / staged.seconds if plain else float("inf")
    pays = "yes" if ratio >= PAYS else "no"
    return [*first, *without, name, f"{staged.seconds:.3g}", f"{staged.bubble / staged.seconds:.0%}", f"{ratio:.2f}" if plain else "", pays]


def share_of_waiting(layout: LayoutEstimate) -> float:
    return layout.seconds.waiting / layout.seconds.total


def main() -> None:
    flags = _table.read_flags(__doc__)
    found = rows((MACHINE * 4,), MODELS[:1]) if flags.quick else rows(COUNTS)
    _table.publish("scaling_pipeline", flags, COLUMNS, list(found), NOTE)


if __name__ == "__main__":
    main()
