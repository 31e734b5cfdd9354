"""Sampling settings of codes: those of a request, else those of the model, else those of the stock package.

The talker, which predicts codebook 0, has the plain names; the code predictor, which predicts the other 15, has them with the prefix
`subtalker_`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.speech.sampling_settings import SamplingScheme

STOCK: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
}
"""Defaults of the stock package."""
SCHEME = SamplingScheme(
    STOCK,
    shaped_by={
        "do_sample": ("temperature", "top_k", "top_p"),
        "subtalker_dosample": ("subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
    },
    help={
        "temperature": "temperature of codebook 0",
        "top_k": "sample codebook 0 from the K most likely codes, 0 for all",
        "top_p": "sample codebook 0 from the most likely codes with this total probability",
        "repetition_penalty": "penalty on codes of codebook 0 that were already generated",
        "subtalker_temperature": "temperature of codebooks 1 to 15",
        "subtalker_top_k": "like --top-k, for codebooks 1 to 15; 1 takes the most likely code",
        "subtalker_top_p": "like --top-p, for codebooks 1 to 15",
    },
)


@dataclass(frozen=True)
class SamplingSettings(SpeechSampling):
    """Settings of a request; None means the model's own. Setting a temperature, top-k or top-p turns sampling on.

    `greedy` takes the most likely code of both models, without the repetition penalty, which would move it away from learned codes. Except
    for `max_seconds`, all other settings are then ignored.
    """

    top_k: int | None = None
    """0: all."""
    top_p: float | None = None
    repetition_penalty: float | None = None
    subtalker_temperature: float | None = None
    subtalker_top_k: int | None = None
    subtalker_top_p: float | None = None
