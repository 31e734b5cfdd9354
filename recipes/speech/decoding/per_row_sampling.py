"""Sampling with settings of each row's own: what `CodeSampler` chooses for a row alone, for the rows of a batch in the same calls."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from .token_sampling import CodeSampler, FrameSampler, sample_codes

IDLE = CodeSampler(greedy=True)
"""The settings of a row without a request."""


class RowSampling:
    """Owns the settings of a batch's rows, as tensors that each step reads."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._samplers = [IDLE] * rows
        self._greedy = torch.ones(rows, dtype=torch.bool, device=device)
        self._temperature, self._penalty, self._tail = (torch.ones(rows, 1, device=device) for _ in range(3))
        self._last_kept = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._limited = torch.zeros(rows, 1, dtype=torch.bool, device=device)
        self._set_plan()

    @torch.inference_mode()
    def set_row(self, row: int, sampler: CodeSampler) -> None:
        """The settings of a row from now on."""
        self._samplers[row] = sampler
        self._greedy[row] = sampler.greedy
        self._temperature[row] = sampler.temperature
        self._penalty[row] = sampler.repetition_penalty
        self._tail[row] = 1 - sampler.top_p if sampler.top_p < 1 else -1.0  # no probability is below -1: nothing is excluded
        self._last_kept[row] = max(sampler.top_k - 1, 0)
        self._limited[row] = sampler.top_k > 0
        self._set_plan()

    def _set_plan(self) -> None:
        sampled = [sampler for sampler in self._samplers if not sampler.greedy]
        self.plan = (
            bool(sampled),
            max((sampler.top_k for sampler in sampled), default=0),
            any(sampler.top_p < 1 for sampler in sampled),
            any(sampler.repetition_penalty != 1.0 for sampler in self._samplers),
        )
        """Operations that are needed: some row samples, the largest top-k, some row has top-p, some row has a repetition penalty. They
        change nothing in the rows that do not need them."""

    @property
    def penalizes(self) -> bool:
        """True if some row has a repetition penalty."""
        return self.plan[3]

    def choose(self, scores: Tensor, random: Tensor) -> Tensor:
        """Choose codes [rows] as `CodeSampler.choose` does, from scores [rows, V] fp32 and random numbers [rows] fp64."""
        samples, top_k, with_top_p, _ = self.plan
        likeliest = scores.argmax(-1)
        if not samples:
            return likeliest
        scores = scores / self._temperature
        if top_k:
            best = scores.topk(min(top_k, scores.shape[-1])).values
            border = best.gather(1, self._last_kept.clamp(max=best.shape[-1] - 1))
            scores = torch.where(self._limited & (scores < border), -torch.inf, scores)
        if with_top_p:
            ascending, order = scores.sort(-1)
            tail = ascending.softmax(-1).cumsum(-1) <= self._tail
            tail[:, -1] = False
            scores = torch.where(tail.scatter(1, order, tail), -torch.inf, scores)
        return torch.where(self._greedy, likeliest, sample_codes(scores.softmax(-1), random))

    def penalize_repetition(self, scores: Tensor, generated: Tensor) -> Tensor:
        """Lower the scores [rows, V] of codes that were already `generated` [rows, V], with each row's own penalty."""
        if not self.penalizes:
            return scores
        moved = torch.where(scores < 0, scores * self._penalty, scores / self._penalty)
        return torch.where(generated, moved, scores)


class RowFrameSampling:
    """`FrameSampler` with settings of each row's own."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.first, self.others = RowSampling(rows, device), RowSampling(rows, device)

    @property
    def plan(self) -> Hashable:
        """Operations that are needed, as of `RowSampling`."""
        return self.first.plan, self.others.plan

    def set_row(self, row: int, sampler: FrameSampler) -> None:
        """The settings of a row from now on."""
        self.first.set_row(row, sampler.first)
        self.others.set_row(row, sampler.others)
