"""Which devices the models of this package run on, how many processes share them, and with how many threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from finetune.errors import UserError

DEVICES = ("cpu", "cuda")
GROUP = Path("/sys/fs/cgroup")


def choose_device(asked: str | None) -> str:
    """`asked`, or the GPU if there is one. Raises `UserError` if a GPU was asked for and torch sees none."""
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device cuda: torch {torch.__version__} sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")


def spread(device: str, workers: int | None, memory_each: int) -> list[str]:
    """The device of each worker, for torch. None: one worker for each GPU; or for each core that this process may use, while each has
    `memory_each` bytes.
    """
    if device == "cpu":
        room = max(1, free_memory() // memory_each)
        return ["cpu"] * (min(len(os.sched_getaffinity(0)), room) if workers is None else workers)
    import torch

    count = torch.cuda.device_count()
    return [f"cuda:{number % count}" for number in range(count if workers is None else workers)]


def make_current(device: str) -> None:
    """Make a GPU the current one of this process: kernels that are launched without naming one, as Whisper's in Triton are, run there."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.set_device(torch.device(device).index or 0)  # Ray's workers see their own GPU alone, and call it "cuda"


def free_memory() -> int:
    """Bytes that processes may still take, by the machine and by the container (control group) that this runs in."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    machine = next(int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:")
    limit, used = (GROUP / "memory.max", GROUP / "memory.current")
    limited = limit.is_file() and used.is_file() and limit.read_text().strip() != "max"
    return min(machine, int(limit.read_text()) - int(used.read_text())) if limited else machine


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Workers share the cores; and sums that several threads divide differ in their last bits with the number of threads."""
    import torch

    with threads_kept():
        torch.set_num_threads(1)
        yield


@contextlib.contextmanager
def threads_kept() -> Iterator[None]:
    """Put torch's number of threads back: importing silero-vad sets it to one, and numba's first parallel loop to all cores.

    The first slows Whisper, the second everything that shares the machine.
    """
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """While open, fp32 products and convolutions are computed in fp32 on a GPU too; torch's default for cuDNN keeps 10 bits of 23.

    Codes and speaker vectors are kept by what they were made from, and that names no device.
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
