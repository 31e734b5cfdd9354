"""Devices (CPU, CUDA) of the models of this package, and the default number of worker processes."""

from __future__ import annotations

import os

from overtone.finetune.errors import UserError
from overtone.finetune.hardware.host_memory import free_host_memory

DEVICES = ("cpu", "cuda")


def choose_device(requested: str | None) -> str:
    """Return `requested`, or by default the GPU if available. Raises `UserError` if a GPU is requested and torch sees none."""
    import torch

    if requested == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device cuda: torch {torch.__version__} sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return requested or ("cuda" if torch.cuda.is_available() else "cpu")


def assign_devices(device: str, workers: int | None, memory_each: int) -> list[str]:
    """Return the torch device of each worker. `workers` None: one per available core, as far as memory allows `memory_each` bytes per
    worker, and at least one per GPU. On GPUs, the memory of the host and the free memory of each GPU limit them.
    """
    cores = len(os.sched_getaffinity(0))
    on_host = min(cores, free_host_memory() // memory_each)
    if device == "cpu":
        return ["cpu"] * (max(1, on_host) if workers is None else workers)
    import torch

    gpus = torch.cuda.device_count()
    if workers is not None:
        return [f"cuda:{number % gpus}" for number in range(workers)]
    # One worker decodes, detects speech and cuts for most of its time, while its GPU waits: several share each GPU. The first worker of
    # every GPU comes before the second of any, and the host's share is rounded down, so that no GPU gets more than the others by chance.
    on_each = [max(1, min(on_host // gpus, torch.cuda.mem_get_info(gpu)[0] // memory_each)) for gpu in range(gpus)]
    return [f"cuda:{gpu}" for place in range(max(on_each)) for gpu in range(gpus) if place < on_each[gpu]]


def set_current_device(device: str) -> None:
    """Make a GPU the current device: kernels launched without an explicit device, such as Whisper's Triton kernels, run there."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.set_device(torch.device(device).index or 0)  # Ray's workers see their own GPU alone, and call it "cuda"
