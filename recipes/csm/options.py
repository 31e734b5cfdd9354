"""Options of the csm recipe. Must not import torch: config checks and `--help` read this module."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from finetune.config import Section


class Options(Section):
    """Options that only this recipe has."""

    trainable: Literal["full", "no_text_embedding"] = "full"
    """Train the whole model except its codec, or also leave out the text embedding (263 M parameters, 4 GB of state), which hours of
    speech hardly improve."""
    depth_weight: float = Field(default=1.0, ge=0)
    """Loss weight of a target of the codebooks after the first, relative to one of the first; transformers' own loss uses 1."""
    depth_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the frames, drawn anew for every micro-batch, that train the codebooks after the first, which are most of the compute. The
    model's authors used 1/16 without a loss of quality, but had far more speech than one voice has. End frames are always trained."""
    speaker: str | None = None
    """Speaker of rows without a speaker."""
