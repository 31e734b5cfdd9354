"""Choosing a code from logits as the stock generation does: the same tokens stay, with the same probabilities.

The stock package leaves the choice to the processors and warpers of `transformers` (RepetitionPenalty, MinNewTokensLength,
SuppressTokens, Temperature, TopK, TopP, in this order). Here the draw is a number in [0, 1) against the cumulative probabilities, so that
each row of a batch has a stream of random numbers of its own: what it says depends on its seed and not on its neighbours or the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_NEW = 2
"""The end of speech cannot be among the first codes of codebook 0 (`min_new_tokens` of the stock generation)."""


@dataclass(frozen=True)
class Choice:
    """How a code is chosen."""

    greedy: bool
    temperature: float = 1.0
    top_k: int = 0
    """0: all."""
    top_p: float = 1.0
    """1: all."""
    repetition_penalty: float = 1.0
    """1: none. Of codebook 0 alone: the others are not penalised."""

    def pick(self, scores: Tensor, drawn: Tensor) -> Tensor:
        """(scores [B, V] fp32, drawn [B] fp64 in [0, 1)) → [B] codes."""
        return scores.argmax(-1) if self.greedy else inverse(self.filtered(scores).softmax(-1), drawn)

    def filtered(self, scores: Tensor) -> Tensor:
        """[B, V] with -inf for what temperature, top-k and top-p leave out. Equal scores at the border of top-k all stay."""
        if self.temperature != 1.0:
            scores = scores / self.temperature
        if self.top_k:
            border = scores.topk(min(self.top_k, scores.shape[-1])).values[:, -1:]
            scores = torch.where(scores < border, -torch.inf, scores)
        return without_tail(scores, self.top_p) if self.top_p < 1 else scores

    def penalised(self, scores: Tensor, said: Tensor) -> Tensor:
        """Scores [B, V] of what was `said` [B, V] already are moved towards the improbable."""
        if self.repetition_penalty == 1.0:
            return scores
        moved = torch.where(scores < 0, scores * self.repetition_penalty, scores / self.repetition_penalty)
        return torch.where(said, moved, scores)


@dataclass(frozen=True)
class Choices:
    """How the codes of a frame are chosen."""

    first: Choice
    """Of codebook 0, by the talker."""
    others: Choice
    """Of the 15 others, by the code predictor."""


GREEDY = Choices(Choice(greedy=True), Choice(greedy=True))


def without_tail(scores: Tensor, top_p: float) -> Tensor:
    """Nucleus: -inf for the least likely codes, which together have at most 1 - top_p; the likeliest one stays."""
    ascending, order = scores.sort(-1)
    tail = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    tail[:, -1] = False
    return torch.where(tail.scatter(1, order, tail), -torch.inf, scores)


def inverse(probabilities: Tensor, drawn: Tensor) -> Tensor:
    """The code in whose share of [0, 1) the drawn number falls: (probabilities [B, V], drawn [B] fp64) → [B].

    In fp64: rounding of an fp32 sum over 3072 shares could reach a code that was left out.
    """
    shares = probabilities.double().cumsum(-1)
    found = torch.searchsorted(shares, (drawn * shares[:, -1])[:, None], right=True)
    return found.squeeze(1).clamp(max=probabilities.shape[-1] - 1)


def permitted_from(vocabulary: int, suppressed: int, end: int) -> Tensor:
    """[vocabulary] int64: the number of codes that must stand before each may be chosen; the last `suppressed` but the end never."""
    first = torch.zeros(vocabulary, dtype=torch.int64)
    first[vocabulary - suppressed :] = torch.iinfo(torch.int64).max
    first[end] = MIN_NEW
    return first


def draws(seeds: Sequence[int], frames: int, codebooks: int) -> Tensor:
    """[frames, codebooks, rows] fp64 in [0, 1): each row's numbers follow from its seed alone, and more frames only add to them."""
    streams = [np.random.Generator(np.random.Philox(seed)).random((frames, codebooks)) for seed in seeds]
    return torch.from_numpy(np.stack(streams, -1))
