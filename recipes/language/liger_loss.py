"""The head and its cross-entropy with Liger's fused Triton kernel (Hsu et al. 2024, arXiv:2410.10989), in the place of `LossHead`.

Both go chunk by chunk and gather gradients in the forward pass; Liger does in one kernel what `loss_head` does to a chunk's logits in ten.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from finetune.errors import UserError
from finetune.modeling.loss_head import LossHead, Shaping


class LigerHead(LossHead):
    """A linear output head [V, H] whose loss and gradients are `LossHead`'s, up to rounding."""

    def __init__(self, linear: nn.Linear, shaping: Shaping) -> None:
        """Raises `UserError` if the model changes its logits: Liger knows no scale, and its cap only runs where no test of ours does."""
        if shaping != Shaping():
            raise UserError(f"options.loss_head: liger is for plain logits, and this model's are changed ({shaping}); take chunked")
        super().__init__(linear, shaping)

    def forward(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """As `LossHead.forward`; of several words that share the highest logit only the first is a hit.

        Where `hidden` wants no gradient, Liger gives the weight none either; here all layers below the head are trained or have adapters.
        """
        if not len(targets):  # Liger divides by their number; and gradients of zero must exist, since the other ranks reduce theirs
            return super().forward(hidden, targets)
        found = _fused()(self.weight, hidden, targets, self.bias)
        return found.loss, (found.predicted_tokens == targets).sum().float()


@cache
def _fused() -> Any:
    """Liger's loss. No submodule of the head: one with children would not be gathered by itself (`sharding.find_units`)."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    # The weight's gradient in fp32, as ours: in bf16, each chunk's addition would round the sum anew.
    return LigerFusedLinearCrossEntropyLoss(reduction="sum", accum_dtype=torch.float32, return_predicted_tokens=True)


def check_runnable() -> None:
    """Raises `UserError` with what is missing here. Triton's interpreter, which is for tests, needs no GPU."""
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError("options.loss_head: liger needs a CUDA GPU, for which its kernels are compiled; take chunked")
    try:
        _fused()
    except (ImportError, TypeError) as error:  # an older release does not know what it is asked for
        raise UserError(f"options.loss_head: liger needs liger-kernel 0.8 or later: pip install 'overtone[liger]' ({error})") from None
