"""Options of the csm recipe. Must not import torch: config checks and `--help` read this module."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from overtone.finetune.config import Section
from overtone.finetune.recipe import ContextLimits


class Options(Section):
    """Options that only this recipe has."""

    trainable: Literal["full", "no_text_embedding"] = "full"
    """Train the whole model except its codec, or also leave out the text embedding (263 M parameters, 4 GB of state), which hours of
    speech hardly improve."""
    depth_weight: float = Field(default=1.0, ge=0)
    """Loss weight of a target of the codebooks after the first, relative to one of the first; transformers' own loss uses 1."""
    depth_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the frames, drawn anew for every micro-batch, that train the codebooks after the first, which are most of the compute. The
    model's authors used 1/16 without a loss of quality, but had far more speech than one voice has. End frames are always trained.
    Evaluations are exact: they compute all frames."""
    context_turns: int = Field(default=0, ge=0)
    """Maximum number of earlier clips of the same recording, of any speaker, that stand before a clip as turns of a conversation. Clips
    have 0 to this many in turn, so that the model also speaks without context. Rows need `source`, `start` and `end`, as from `overtone
    voice`."""
    context_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Longest speech of these clips together; the oldest are left out beyond it. A second takes 12.5 positions."""
    context_loss: Literal["last", "all"] = "last"
    """Turns that the loss is computed for: the clip alone, so that each clip is trained once in an epoch, or the clips before it too."""
    speaker: str | None = None
    """Speaker of rows without a speaker."""


def limit_context(options: Options) -> ContextLimits:
    """At most so many earlier clips before a clip, and seconds of them."""
    return ContextLimits(options.context_turns, options.context_seconds)
