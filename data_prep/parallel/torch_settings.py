"""Settings of torch for the time of a computation: its number of threads, and TF32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


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
