"""Devices (CPU, CUDA) of the models of this package, and the default number of worker processes."""

from __future__ import annotations

import os

from overtone.finetune.errors import UserError
from overtone.finetune.hardware.host_memory import free_host_memory

DEVICES = ("cpu", "cuda")


def choose_device(requested: str | None) -> str:
    """`requested`, or by default the GPU if available. Raises `UserError` if a GPU is requested and torch sees none."""
    import torch

    if requested == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device cuda: torch {torch.__version__} sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return requested or ("cuda" if torch.cuda.is_available() else "cpu")


def assign_devices(device: str, workers: int | None, memory_each: int) -> list[str]:
    """The torch device of each worker. `workers` None: one per GPU; on a CPU one per available core, as far as memory allows
    `memory_each` bytes per worker.
    """
    if device == "cpu":
        room = max(1, free_host_memory() // memory_each)
        return ["cpu"] * (min(len(os.sched_getaffinity(0)), room) if workers is None else workers)
    import torch

    count = torch.cuda.device_count()
    return [f"cuda:{number % count}" for number in range(count if workers is None else workers)]


def set_current_device(device: str) -> None:
    """Make a GPU the current device: kernels launched without an explicit device, such as Whisper's Triton kernels, run there."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.set_device(torch.device(device).index or 0)  # Ray's workers see their own GPU alone, and call it "cuda"
