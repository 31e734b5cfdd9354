"""Output head and cross-entropy with Liger's fused Triton kernel (Hsu et al. 2024, arXiv:2410.10989), as a replacement of `LossHead`.

Both work chunk by chunk and compute gradients in the forward pass. Liger needs one kernel for what `LossHead` does to the logits of a chunk
in ten operations.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loss_head import LossHead, Shaping


class LigerHead(LossHead):
    """A linear output head [V, H] with the loss and the gradients of `LossHead`, up to rounding."""

    def __init__(self, linear: nn.Linear, shaping: Shaping) -> None:
        """Raises `UserError` if the model changes its logits: Liger supports no scale, and its soft cap is not covered by our tests."""
        if shaping != Shaping():
            raise UserError(f"options.loss_head: liger needs unmodified logits, and this model changes them ({shaping}); use chunked")
        super().__init__(linear, shaping)

    def forward(self, hidden: Tensor, targets: Tensor, base_states: Tensor | None = None, each: bool = False) -> tuple[Tensor, ...]:
        """As `LossHead.forward`, by whose operations the distance to a base is measured here, too. If several tokens share the highest
        logit, only the first one counts as a correct prediction.

        If `hidden` requires no gradient, Liger computes none for the weight either; here all layers below the head are trained or adapted.
        """
        # Liger divides by the number of targets. Gradients of zero must exist, because the other ranks reduce theirs.
        if each or not len(targets):
            return super().forward(hidden, targets, base_states, each)
        result = _liger_loss()(self.weight, hidden, targets, self.bias)
        hits = (result.predicted_tokens == targets).sum().float()
        return (result.loss, hits) if base_states is None else (result.loss, hits, self.measure_distance(hidden, base_states))


@cache
def _liger_loss() -> Any:
    """Liger's loss. It is no submodule of the head, because a head with children would not be its own sharding unit."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss  # an optional package

    # The weight's gradient is accumulated in fp32, as in LossHead: in bf16 each chunk's addition would round the sum again.
    return LigerFusedLinearCrossEntropyLoss(reduction="sum", accum_dtype=torch.float32, return_predicted_tokens=True)


def check_runnable() -> None:
    """Raises `UserError`, which names what is missing on this machine. Triton's interpreter, which tests use, needs no GPU."""
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError("options.loss_head: liger needs a CUDA GPU for its Triton kernels; use chunked")
    try:
        _liger_loss()
    except (ImportError, TypeError) as error:  # TypeError: an older release does not accept these arguments
        raise UserError(f"options.loss_head: liger needs liger-kernel 0.8 or later: pip install 'overtone[liger]' ({error})") from None
