"""Estimate: time of a step and cost of a billion positions on 1 to 512 GPUs, for Qwen3-TTS-1.7B and an 8B language model.

Nothing here ran on a GPU. Each figure comes from what `overtone plan` counts and traces of the real models' shapes, and from its
simulation of a step (finetune/planning/parallelism_planner.py) on machines of eight H100; communication.py holds what that says to be sent
against what real ranks send. workshop/lab_book/scaling.md states every assumption.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.config import resolve
from overtone.finetune.hardware.gpu_specs import GPUS, Cluster
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.planning.parallelism_planner import LayoutEstimate, Work, estimate_layout, list_arrangements, rank_layouts
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.storage import files
from overtone.recipes.qwen3_tts.model.config_factory import make_released_config
from workshop.benchmarks import _table

GPU = "h100-80gb"
MACHINE = 8
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FABRICS = (400.0, 12.5)
"""GB a second between two machines: a card of 400 Gb/s for each GPU, as DGX H100's data sheet has it, or one of 100 Gb/s for all."""
PRICE = 3.0
"""Dollars for an hour of a GPU. Rented H100 were on offer for 2 to 5 in 2026."""
WAYS = ("ddp", "zero1", "fsdp", "hsdp", "fsdp × tp")
COLUMNS = (
    "model", "a step's positions", "GPUs", "between machines, GB/s", *(f"{way}, s" for way in WAYS), "best", "waits",
    "GPU-hours for 10⁹", "$ for 10⁹",
)  # fmt: skip
NOTE = (
    "Seconds of a step; “–” does not fit into 80 GB, or is not possible. A step's positions: one micro-batch for each GPU (grows with "
    "their number), or a fixed number (the micro-batches become smaller). hsdp: a copy for each machine. fsdp × tp: the fastest of 2, 4 "
    "and 8 neighbours, its number behind it. Waits: share of the best way's step in which a GPU waits for others. Costs are of 10⁹ "
    f"positions of the best way, at {PRICE:g} $ for a GPU's hour."
)


@dataclass(frozen=True, eq=False)
class Model:
    """A run of a model by its shape."""

    name: str
    recipe: str
    shape: dict[str, Any]
    micro: int
    """Positions of a micro-batch."""
    batch: int
    """Positions of a step, where they are fixed."""
    recomputing: str


LLAMA_8B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
MODELS = (
    Model("Qwen3-TTS-1.7B", "voice_clone", make_released_config("1.7B"), 2048, 2**16, "none"),
    Model("Llama-3-8B", "llm_sft", LLAMA_8B, 8192, 2**19, "full"),
)


@dataclass(frozen=True)
class Case:
    """A step of a model on so many GPUs."""

    model: Model
    grows: bool
    """True if each GPU has a micro-batch of the full size, however many there are."""
    gpus: int
    fabric: float
    verdicts: tuple[LayoutEstimate, ...]
    """The best first."""

    @property
    def batch(self) -> int:
        return self.model.micro * self.gpus if self.grows else self.model.batch

    @property
    def best(self) -> LayoutEstimate | None:
        return self.verdicts[0] if self.verdicts[0].fits else None

    def of(self, way: str) -> LayoutEstimate | None:
        """The fastest arrangement of a way that fits."""
        return next((each for each in self.verdicts if each.fits and way_of(each) == way), None)


def way_of(verdict: LayoutEstimate) -> str:
    return "fsdp × tp" if verdict.arrangement.tensor > 1 else verdict.arrangement.strategy


def waits(verdict: LayoutEstimate) -> float:
    return verdict.seconds.waiting / verdict.seconds.total


def gpu_hours(case: Case, verdict: LayoutEstimate) -> float:
    """For 10⁹ positions."""
    return case.gpus * verdict.seconds.total / case.batch * 1e9 / 3600


@cache
def work_of(model: Model) -> Work:
    """Counted and traced."""
    recipe = load_recipe(find_recipe(model.recipe))
    with tempfile.TemporaryDirectory() as folder:
        files.write_json(Path(folder) / "config.json", model.shape)
        own = {
            "model.source": folder,
            "run.dir": f"{folder}/run",
            "train.micro_tokens": model.micro,
            "train.global_batch_tokens": model.batch,
            "train.activation_checkpointing": model.recomputing,
        }
        base = [find_recipe(model.recipe) / "config.yaml"]
        return estimate_run(resolve(model.recipe, recipe.Options, base, [(key, str(value)) for key, value in own.items()]), recipe).work


def cluster_of(gpus: int, fabric: float) -> Cluster:
    return Cluster(GPU, replace(GPUS[GPU], fabric=fabric), min(gpus, MACHINE), max(1, gpus // MACHINE))


def case_of(model: Model, grows: bool, gpus: int, fabric: float) -> Case:
    """Judged in every way that there is; of `hsdp`, with a copy for each machine."""
    cluster, work = cluster_of(gpus, fabric), work_of(model)
    batch = model.micro * gpus if grows else model.batch
    work = replace(work, global_batch_tokens=batch, micro_tokens=min(model.micro, batch // gpus))
    among = [each for each in list_arrangements(cluster, work.refuses_tensor) if each.replicate in (1, cluster.nodes)]
    return Case(model, grows, gpus, fabric, tuple(rank_layouts([estimate_layout(work, cluster, each, work.recomputing) for each in among])))


def cases(counts: tuple[int, ...] = COUNTS) -> Iterator[Case]:
    for model in MODELS:
        for grows in (True, False):
            for fabric in FABRICS:
                for gpus in counts:
                    if gpus > MACHINE or fabric == FABRICS[0]:  # within a machine nothing lies between machines
                        yield case_of(model, grows, gpus, fabric)


def row(case: Case) -> list[str]:
    fabric = f"{case.fabric:g}" if case.gpus > MACHINE else ""
    first = [case.model.name, f"{case.batch:,}{', grows' if case.grows else ''}", str(case.gpus), fabric]
    best = case.best
    if best is None:
        return [*first, *("–" for _ in WAYS), f"– needs {case.verdicts[0].memory.total / 2**30:.0f} GiB a GPU", "", "", ""]
    hours = gpu_hours(case, best)
    last = [str(best.arrangement), f"{waits(best):.0%}", f"{hours:.1f}", f"{PRICE * hours:.0f}"]
    return [*first, *(seconds(case.of(way)) for way in WAYS), *last]


def seconds(verdict: LayoutEstimate | None) -> str:
    if verdict is None:
        return "–"
    shared = f" (tp {verdict.arrangement.tensor})" if verdict.arrangement.tensor > 1 else ""
    return f"{verdict.seconds.total:.3g}{shared}"


def main() -> None:
    flags = _table.read_flags(__doc__)
    counts = (8, 16) if flags.quick else COUNTS
    _table.publish("scaling", flags, COLUMNS, [row(case) for case in cases(counts)], NOTE)


if __name__ == "__main__":
    main()
