"""Hardware specifications for planning: memory, speed and interconnect of GPU types, and clusters of them. Imports no torch.

Memory is the total that torch reports for a device. Speeds are from the manufacturers' data sheets: dense bf16 products with fp32
accumulation, and one direction of the link between GPUs of a machine. These are peak values; `EFFICIENCY` is the fraction that training
reaches.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from overtone.finetune.errors import UserError

EFFICIENCY = 0.40
"""Fraction of a GPU's dense bf16 speed that fine-tuning reaches. Published: 33 to 47 % on H100, 54 to 64 % on A100; less for small models.
Measured on an H100 (workshop/benchmarks/gpu.py): 41 % with a 1.7B chat model and compiled blocks, 30 % without; 17 % and 9 % with a
0.6B voice."""


@dataclass(frozen=True)
class Gpu:
    memory: float
    """GiB."""
    speed: float
    """Dense bf16, in 10¹² operations per second."""
    link: float
    """GB per second and direction between two GPUs of a machine: NVLink or PCIe."""
    fabric: float
    """GB per second between two machines with eight GPUs, assumed: 400 Gb/s per GPU with NVLink, otherwise 100 Gb/s per machine."""


GPUS: dict[str, Gpu] = {
    "b200": Gpu(178.0, 2250, 900, 400),
    "h200": Gpu(139.8, 989, 450, 400),
    "h100-80gb": Gpu(79.1, 989, 450, 400),
    "a100-80gb": Gpu(79.2, 312, 300, 400),
    "a100-40gb": Gpu(39.4, 312, 300, 400),
    "l40s": Gpu(44.4, 362, 32, 12.5),
    "a6000": Gpu(47.4, 155, 32, 12.5),
    "a10g": Gpu(22.0, 70, 32, 12.5),
    "l4": Gpu(22.0, 121, 32, 12.5),
    "rtx-4090": Gpu(23.5, 165, 32, 12.5),
    "rtx-3090": Gpu(23.5, 71, 32, 12.5),
}


@dataclass(frozen=True)
class Cluster:
    """Identical machines with identical GPUs."""

    name: str
    gpu: Gpu
    gpus: int
    """GPUs per machine."""
    nodes: int = 1

    @property
    def ranks(self) -> int:
        return self.gpus * self.nodes

    @property
    def budget(self) -> float:
        """Memory of one GPU, in bytes."""
        return self.gpu.memory * 2**30

    def __str__(self) -> str:
        machines = f"{self.nodes} machines of " if self.nodes > 1 else ""
        return f"{machines}{self.gpus} × {self.name} ({self.gpu.memory:g} GiB)"


def make_cluster(name: str, gpus: int, nodes: int) -> Cluster:
    """Return a cluster with GPUs of type `name`, `gpus` per machine. Raises `UserError` for an unknown type or a number below 1."""
    if name not in GPUS:
        near = [known for known in GPUS if name and known.startswith(name.lower())] or difflib.get_close_matches(name, GPUS, n=1)
        raise UserError(f"--gpu {name}: unknown{f'; did you mean {near[0]}?' if near else ''}; known: {', '.join(GPUS)}")
    if gpus < 1 or nodes < 1:
        raise UserError(f"--gpus {gpus} --nodes {nodes}: give at least one GPU per machine (--gpus), and one machine (--nodes)")
    return Cluster(name, GPUS[name], gpus, nodes)
