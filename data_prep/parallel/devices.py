"""Devices (CPU, CUDA) of the models of this package, default number of worker processes, thread counts, TF32."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from finetune.errors import UserError
from finetune.hardware.host_memory import free_host_memory

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


@contextlib.contextmanager
def use_one_thread() -> Iterator[None]:
    """Run torch with one thread: workers share the cores, and the last bits of sums depend on the number of threads."""
    import torch

    with restore_thread_count():
        torch.set_num_threads(1)
        yield


@contextlib.contextmanager
def restore_thread_count() -> Iterator[None]:
    """Restore torch's number of threads on exit: importing silero-vad sets it to one, and numba's first parallel loop to all cores.

    The first slows down Whisper, the second everything else on the machine.
    """
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def disable_tf32() -> Iterator[None]:
    """Disable TF32: compute fp32 products and convolutions in full fp32 on a GPU; torch's cuDNN default keeps 10 of 23 mantissa bits.

    Stored codes and speaker embeddings are keyed by their inputs, which do not include the device.
    """
    import torch

    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)
