"""Estimate: up to which micro-batch sending tokens to experts (expert parallelism) would be faster than gathering the experts.

For one layer of a mixture of experts and one micro-batch, forward and backward. Gathering moves all experts whatever the micro-batch, and
overlaps with computation. Sending moves each position to its experts and back, and nothing else can be computed meanwhile. Overtone gathers
experts, as all parameters. workshop/lab_book/scaling.md states every assumption.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.hardware.gpu_specs import EFFICIENCY, GPUS
from overtone.finetune.planning.memory import GIB, GRADIENT
from overtone.finetune.planning.parallelism_planner import HOP
from workshop.benchmarks import _table

GPU = GPUS["h100-80gb"]
MACHINE = 8
COUNTS = (8, 64)
"""GPUs; the experts are divided over all of them, or over those of a machine."""
POSITIONS = (2048, 8192, 32768)
COMPUTE = 2
"""Bytes of an element in bf16."""
PASSES = 4
"""Forward 1, backward 2, and once more the forward that full activation checkpointing repeats."""


@dataclass(frozen=True)
class ExpertLayer:
    """A layer by the config.json of its model."""

    name: str
    hidden: int
    experts: int
    active: int
    """Experts of a position."""
    width: int
    """Width of an expert, which has three matrices of hidden × width."""
    shared: int
    """Parameters that every position uses: attention, and shared experts."""

    @property
    def weights(self) -> int:
        """Parameters of all experts."""
        return self.experts * 3 * self.hidden * self.width

    @property
    def used(self) -> int:
        """Parameters that a position is multiplied with."""
        return self.active * 3 * self.hidden * self.width + self.shared


LAYERS = (
    # Attention: query and output of heads × size, key and value of their own heads.
    ExpertLayer("Mixtral-8x7B", 4096, 8, 2, 14336, 2 * 4096 * 4096 + 2 * 4096 * 1024),
    ExpertLayer("Qwen3-30B-A3B", 2048, 128, 8, 768, 2 * 2048 * 4096 + 2 * 2048 * 512),
    ExpertLayer("Qwen3-235B-A22B", 4096, 128, 8, 1536, 2 * 4096 * 8192 + 2 * 4096 * 512),
    # Attention by latents (query 1,536, key and value 512 + 64; 128 heads of 192 and 128), and one shared expert.
    ExpertLayer(
        "DeepSeek-V3",
        7168,
        256,
        8,
        2048,
        7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168 + 3 * 7168 * 2048,
    ),
)
COLUMNS = (
    "model", "GPUs", "positions of a GPU", "gathered, GiB", "computing, ms", "gathering, ms", "waits, ms", "sending in a machine, ms",
    "sending between all, ms", "faster", "ratio",
)  # fmt: skip
NOTE = (
    "One layer and one micro-batch, forward and backward. Gathered: all experts of a layer in bf16 and their gradients in fp32. Waits: "
    "by how much gathering is longer than computing. Sending: to experts on the 8 GPUs of a machine (those of other machines then have the "
    "same experts, and gather them in eighths), and to experts on all GPUs. Ratio: the time of computing and gathering, divided by that of "
    "computing and sending, the shorter way; “–”: what is gathered takes more than half of the memory, so only sending is possible."
)


def computing(layer: ExpertLayer, positions: int) -> float:
    """Seconds: 2 operations for each parameter that a position uses, in each pass. Without the product of queries and keys."""
    return PASSES * 2 * layer.used * positions / (GPU.speed * 1e12 * EFFICIENCY)


def gathering(layer: ExpertLayer, gpus: int) -> float:
    """Seconds of three ring collectives, as in the planner: gathered for forward and backward pass, and gradients reduced in fp32."""
    speed = (GPU.link if gpus <= MACHINE else min(GPU.link, GPU.fabric)) * 1e9
    return (gpus - 1) / gpus * layer.weights * (2 * COMPUTE + GRADIENT) / speed + 3 * (gpus - 1) * HOP


def copies(layer: ExpertLayer, gpus: int) -> float:
    """On how many GPUs the experts of a position are, on average, if they are chosen evenly; a position is sent once to each."""
    return gpus * (1 - (1 - 1 / gpus) ** layer.active)


def sending(layer: ExpertLayer, positions: int, gpus: int) -> float:
    """Seconds of the all-to-alls: to the experts and back, in the forward pass, its repetition and the backward pass. The positions that
    leave a machine share its network."""
    sent = copies(layer, gpus) * positions * layer.hidden * COMPUTE
    inside = sent * (min(gpus, MACHINE) - 1) / gpus / (GPU.link * 1e9)
    outside = sent * max(0, gpus - MACHINE) / gpus / (GPU.fabric * 1e9 / MACHINE)
    return 6 * (max(inside, outside) + HOP)


def gathered_bytes(layer: ExpertLayer) -> int:
    return layer.weights * (COMPUTE + GRADIENT)


def row(layer: ExpertLayer, gpus: int, positions: int) -> list[str]:
    once, gather = computing(layer, positions), gathering(layer, gpus)
    near, far = sending(layer, positions, MACHINE), sending(layer, positions, gpus)
    between = gathering_between_machines(layer, gpus)
    waits = max(0.0, gather - once)
    send = min(near + max(0.0, between - once), far)
    fits = gathered_bytes(layer) < GPU.memory * GIB / 2
    ratio = (once + waits) / (once + send)
    faster = "sending" if ratio > 1 or not fits else "gathering"
    shown = [f"{1e3 * each:.1f}" for each in (once, gather, waits, near, far)]
    return [layer.name, f"{gpus}", f"{positions:,}", f"{gathered_bytes(layer) / GIB:.1f}", *shown, faster, f"{ratio:.2f}" if fits else "–"]


def gathering_between_machines(layer: ExpertLayer, gpus: int) -> float:
    """Seconds of `gathering` if each GPU of a machine gathers an eighth of the experts, from its counterparts in other machines."""
    machines = gpus // MACHINE
    if machines == 1:
        return 0.0
    size = layer.weights / MACHINE * (2 * COMPUTE + GRADIENT)
    return (machines - 1) / machines * size / (GPU.fabric * 1e9 / MACHINE) + 3 * (machines - 1) * HOP


def rows(layers: tuple[ExpertLayer, ...] = LAYERS) -> Iterator[list[str]]:
    return (row(layer, gpus, positions) for layer in layers for gpus in COUNTS for positions in POSITIONS)


def main() -> None:
    flags = _table.read_flags(__doc__)
    _table.publish("scaling_experts", flags, COLUMNS, list(rows(LAYERS[:1] if flags.quick else LAYERS)), NOTE)


if __name__ == "__main__":
    main()
