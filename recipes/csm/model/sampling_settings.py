"""Sampling settings of codes, under the names of the stock class: plain for the backbone, which predicts codebook 0, and with the prefix
`depth_decoder_` for the depth decoder, which predicts the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from overtone.recipes.speech.interface import SpeechSampling
from overtone.recipes.speech.sampling_settings import SamplingScheme

SHAPES = ("temperature", "top_k", "top_p")
PREFIX = "depth_decoder_"
DEFAULTS: dict[str, Any] = {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0}
"""Defaults of transformers' `GenerationConfig`. The released model's generation_config.json samples at temperature 0.9."""
SCHEME = SamplingScheme(
    stock={**DEFAULTS, **{PREFIX + name: value for name, value in DEFAULTS.items()}},
    shaped_by={"do_sample": SHAPES, f"{PREFIX}do_sample": tuple(PREFIX + name for name in SHAPES)},
    help={
        "temperature": "temperature of codebook 0",
        "top_k": "sample codebook 0 from the K most likely codes, 0 for all",
        "depth_decoder_temperature": "temperature of the other codebooks",
        "depth_decoder_top_k": "like --top-k, for the other codebooks; 1 takes the most likely code",
    },
)


@dataclass(frozen=True)
class CsmSampling(SpeechSampling):
    """Settings of a request; None means the model's own. Setting a temperature or top-k turns sampling on for its codebooks."""

    top_k: int | None = None
    """0: all."""
    depth_decoder_temperature: float | None = None
    depth_decoder_top_k: int | None = None
