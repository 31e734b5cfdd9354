"""Sampling of codes from logits with the same candidates and probabilities as in the generation of `transformers`.

Its processors and warpers are RepetitionPenalty, Temperature, TopK, TopP, in this order. Here a code is chosen by a random number in [0, 1)
and the cumulative probabilities. Each row of a batch has its own stream of random numbers, so its speech depends on its seed, not on the
other rows or on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.speech.sampling_settings import SamplingScheme


class CodeChooser(Protocol):
    """Chooses codes: `CodeSampler` with the same settings for all rows, `RowSampling` with those of each row."""

    def choose(self, scores: Tensor, random: Tensor) -> Tensor:
        """Scores [B, V] fp32, random numbers [B] fp64 in [0, 1) → codes [B]."""


@dataclass(frozen=True)
class CodeSampler:
    """Sampler of one code."""

    greedy: bool
    temperature: float = 1.0
    top_k: int = 0
    """0: no limit."""
    top_p: float = 1.0
    """1: no limit."""
    repetition_penalty: float = 1.0
    """1: no penalty. `RowSampling.penalize_repetition` applies it."""

    def choose(self, scores: Tensor, random: Tensor) -> Tensor:
        """Scores [B, V] fp32, random numbers [B] fp64 in [0, 1) → codes [B]."""
        return scores.argmax(-1) if self.greedy else sample_codes(self.filter_scores(scores).softmax(-1), random)

    def filter_scores(self, scores: Tensor) -> Tensor:
        """[B, V], with -inf for codes that temperature, top-k and top-p exclude. Scores equal to the k-th score are all kept."""
        if self.temperature != 1.0:
            scores = scores / self.temperature
        if self.top_k:
            border = scores.topk(min(self.top_k, scores.shape[-1])).values[:, -1:]
            scores = torch.where(scores < border, -torch.inf, scores)
        return apply_top_p(scores, self.top_p) if self.top_p < 1 else scores


@dataclass(frozen=True)
class FrameSampler:
    """Sampler of the codes of a frame."""

    first: CodeSampler
    """Codebook 0, predicted by the backbone."""
    others: CodeSampler
    """The other codebooks, predicted by a smaller model from the backbone's state."""


def make_samplers(scheme: SamplingScheme, model_settings: Mapping[str, Any], requested: SpeechSampling) -> list[CodeSampler]:
    """The samplers of a request for a model with the settings `model_settings` (see `SamplingScheme.read_model_settings`): one for each
    switch of the scheme. A repetition penalty, if the scheme has one, applies to the first."""
    if requested.greedy:
        return [CodeSampler(greedy=True)] * len(scheme.shaped_by)
    use = scheme.resolve(model_settings, requested)
    first, *others = (CodeSampler(not use[switch], *(use[name] for name in names)) for switch, names in scheme.shaped_by.items())
    return [replace(first, repetition_penalty=use.get("repetition_penalty", 1.0)), *others]


def make_frame_sampler(scheme: SamplingScheme, model_settings: Mapping[str, Any], requested: SpeechSampling) -> FrameSampler:
    """The samplers of `make_samplers` for a scheme with two switches: for codebook 0, and for the others."""
    return FrameSampler(*make_samplers(scheme, model_settings, requested))


def apply_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Nucleus sampling of scores [B, V]: -inf for the least likely codes, whose total probability is at most 1 - top_p; the most likely
    code is kept."""
    ascending, order = scores.sort(-1)
    tail = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    tail[:, -1] = False
    return torch.where(tail.scatter(1, order, tail), -torch.inf, scores)


def sample_codes(probabilities: Tensor, random: Tensor) -> Tensor:
    """The code in whose share of [0, 1) the random number falls: probabilities [B, V], random numbers [B] fp64 → codes [B].

    Uses fp64: rounding in an fp32 sum over 3072 shares could select an excluded code.
    """
    shares = probabilities.double().cumsum(-1)
    found = torch.searchsorted(shares, (random * shares[:, -1])[:, None], right=True)
    return found.squeeze(1).clamp(max=probabilities.shape[-1] - 1)
