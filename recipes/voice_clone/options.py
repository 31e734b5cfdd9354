"""Options of the voice_clone recipe. Must not import torch: config checks and `--help` read this module."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from overtone.finetune.config import Section


class Options(Section):
    """Options that only this recipe has."""

    trainable: Literal["full", "no_text_embedding"] = "full"
    """Train all of the talker, or all but its text embedding (311 M parameters, 5 GB of state), which hours of speech hardly improve."""
    sub_weight: float = Field(default=0.3, ge=0)
    """Loss weight of a target of codebooks 1 to 15, relative to one of codebook 0; the model's authors use 0.3."""
    sub_frames: float = Field(default=1.0, gt=0, le=1)
    """Share of the frames, drawn for every micro-batch, that train codebooks 1 to 15, which are most of the compute. Sesame's CSM lost no
    quality at 1/16 ("compute amortization" in its report), but had far more speech than one voice has."""
    frame_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the frames that the talker's input lacks in training when it predicts codebook 0, so that it relies on the text and
    memorizes few clips less quickly. Codebooks 1 to 15 are trained on complete inputs, as in generation. So with dropout, the talker
    computes each clip twice, which takes time and memory. Compare the pre-net dropout of Tacotron (Wang et al. 2017); the effect on
    Qwen3-TTS has not been measured."""
    language: Literal["row", "none"] = "row"
    """Put each row's language into the prompt, as generation with --language does, or never, as generation with language auto does."""
    speaker: str | None = None
    """Speaker of rows without a speaker."""
    references: int = Field(default=8, ge=1)
    """Number of reference clips averaged for a speaker's vector."""
    vector_steps: int = Field(default=0, ge=0)
    """Steps that fit each speaker's vector to the speaker's clips before training, with the base frozen, on one process in fp32; 0: none.
    The encoder's vector of noisy clips can be far off: in the demo, 96 steps lower the first codebook's loss from 7.2 to 1.9 nats."""
