"""Alternatives of other programs to `LossHead`."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from overtone.finetune.modeling.loss_head import LossHead, of_logits


class WholeLogits(LossHead):
    """The head as most frameworks have it: the logits of all positions, a copy in fp32, cross-entropy."""

    def forward(self, hidden: Tensor, targets: Tensor, base_states: Tensor | None = None, each: bool = False) -> tuple[Tensor, ...]:
        assert base_states is None and not each, "others do not measure the distance to the base, or single targets here"
        return of_logits(functional.linear(hidden, self.weight, self.bias), targets)
