"""Which device the models of this package run on, and with how many threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from finetune.errors import UserError

DEVICES = ("cpu", "cuda")


def choose_device(asked: str | None) -> str:
    """`asked`, or the GPU if there is one. Raises `UserError` if a GPU was asked for and torch sees none."""
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device cuda: torch {torch.__version__} sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")


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
