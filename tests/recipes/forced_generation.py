"""Stock generation along given tokens: the log-probability that it gives to each, which a training loss has to equal."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor


class ForcedTokens(LogitsProcessor):
    """Lets generation choose only the given tokens, one after the other, and records the log-probability of each."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.noted: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token = self.tokens[len(self.noted)]
        self.noted.append(scores.log_softmax(-1)[0, token])
        only = torch.full_like(scores, -torch.inf)
        only[:, token] = 0.0
        return only
