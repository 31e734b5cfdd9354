"""Sampling settings of tokens: the settings of a request, else those of the model's folder, else those of the family's authors.

Must not import torch: `--help` reads this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.speech.sampling_settings import SamplingScheme

from ..families import ORPHEUS, Family

if TYPE_CHECKING:
    from overtone.recipes.speech.decoding.token_sampling import CodeSampler

SCHEME = SamplingScheme(
    stock={
        "do_sample": True,
        "temperature": ORPHEUS.temperature,
        "top_k": 0,
        "top_p": ORPHEUS.top_p,
        "repetition_penalty": ORPHEUS.repetition_penalty,
    },
    shaped_by={"do_sample": ("temperature", "top_k", "top_p")},
    help={
        "temperature": "sampling temperature of all codes",
        "top_k": "sample from so many codes, the most likely ones; 0: from all",
        "top_p": "sample from the most likely codes with this total probability",
        "repetition_penalty": "make tokens less likely that were already generated; 1: off",
    },
)


@dataclass(frozen=True)
class TokenSampling(SpeechSampling):
    """Settings of a request; None means the model's own. `greedy` takes the most likely token, without the repetition penalty."""

    top_k: int | None = None
    """0: all."""
    top_p: float | None = None
    repetition_penalty: float | None = None
    constrained: bool = True
    """Choose only among the codes of the slot that is next, or end of speech between frames. Without it, among all tokens, as transformers
    does; a token that is no code of its slot is then an error."""


def resolve_settings(family: Family, model_settings: Mapping[str, Any], sampling: SpeechSampling) -> dict[str, Any]:
    """Every setting of the scheme. `model_settings`: see `SamplingScheme.read_model_settings`."""
    authors = {"temperature": family.temperature, "top_p": family.top_p, "repetition_penalty": family.repetition_penalty}
    return SCHEME.resolve({**authors, **model_settings}, sampling)


def make_sampler(family: Family, model_settings: Mapping[str, Any], sampling: TokenSampling) -> CodeSampler:
    """The sampler of a request."""
    from overtone.recipes.speech.decoding.token_sampling import CodeSampler

    if sampling.greedy:
        return CodeSampler(greedy=True)
    use = resolve_settings(family, model_settings, sampling)
    return CodeSampler(not use["do_sample"], use["temperature"], use["top_k"], use["top_p"], use["repetition_penalty"])
