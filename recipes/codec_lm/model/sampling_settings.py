"""Sampling settings of tokens: the settings of a request, else those of the model's folder, else those of the family's authors.

Must not import torch: `--help` reads this module.
"""

from __future__ import annotations

from dataclasses import dataclass

from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.speech.sampling_settings import SamplingScheme

from ..families import ORPHEUS

SCHEME = SamplingScheme(
    stock={"do_sample": True, "top_k": 0, **ORPHEUS.sampling},
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
