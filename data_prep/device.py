"""Which device the models of this package run on."""

from __future__ import annotations

from finetune.errors import UserError

DEVICES = ("cpu", "cuda")


def choose_device(asked: str | None) -> str:
    """`asked`, or the GPU if there is one. Raises `UserError` if a GPU was asked for and torch sees none."""
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device cuda: torch {torch.__version__} sees no GPU here; use --device cpu, or install a CUDA build of torch")
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")
