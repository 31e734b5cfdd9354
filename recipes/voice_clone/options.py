"""The options of voice_clone. Imports no torch: config and `--help` are read from here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from finetune.config import Section


class Options(Section):
    """What is particular to this recipe."""

    trainable: Literal["full", "no_text_embedding"] = "full"
    """All of the talker, or all but its text embedding: 311 M parameters (5 GB of state) that a few hours of speech can hardly improve."""
    sub_weight: float = Field(default=0.3, ge=0)
    """Weight of codebooks 1 to 15 against codebook 0, per target; 0.3 is the model's makers' own."""
    sub_frames: float = Field(default=1.0, gt=0, le=1)
    """Share of the frames that codebooks 1 to 15 are learned from, drawn anew for every micro-batch: they are most of the arithmetic. Of
    one frame in 16 Sesame's CSM learned no worse (its makers' report, "compute amortization"), from far more speech than one voice has."""
    frame_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of its own frames that the talker does not hear in training: it must read then, and cannot learn a few clips by heart as soon.
    So learn Tacotron's decoders (Wang et al. 2017, the pre-net's dropout); what Qwen3-TTS gains has not been measured."""
    language: Literal["row", "none"] = "row"
    """Tell the model each row's language, as generation with --language does; or never, as generation with language auto does."""
    speaker: str | None = None
    """Name of the speaker of rows that name none."""
    references: int = Field(default=8, ge=1)
    """Reference clips that are averaged for a speaker's vector."""
