"""From codes to sound, piece by piece, with every sample as if it had been decoded in one piece.

The codec's decoder looks only backwards: a transformer over frames with a sliding window, then convolutions. The stock package decodes
pieces of 300 frames (24 s), each after 25 frames of context, which is less than the transformer sees, so that the sound after a border is
another one. Here the transformer keeps its keys and values from piece to piece, and the convolutions get again as many frames as they look
back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

PIECE = 300
"""Frames at a time when nobody waits: 24 s; bounds the memory of the convolutions."""


class WaveStream:
    """Decodes a batch of code sequences that grow. Owns what the decoder remembers of the frames before."""

    def __init__(self, decoder: Any) -> None:
        """`decoder`: the `Qwen3TTSTokenizerV2Decoder` of the 12 Hz codec."""
        from transformers.cache_utils import DynamicCache

        self._decoder = decoder
        self._lookback = frames_seen(decoder)
        self._cache = DynamicCache(config=decoder.pre_transformer.config)
        self._quantised: Tensor | None = None
        self._hidden: Tensor | None = None
        self._done = 0

    @torch.inference_mode()
    def feed(self, codes: Tensor) -> Tensor:
        """The next frames [B, T, codebooks], T ≥ 1 → their samples [B, T · 1920] float32."""
        hidden = self._transformed(self._convolved(self._decoder.quantizer.decode(codes.transpose(1, 2))))
        wave = recalled(self._hidden, hidden)
        kept = wave.shape[-1] - hidden.shape[-1]
        self._hidden = wave[..., -self._lookback :]
        for blocks in self._decoder.upsample:
            for block in blocks:
                wave = block(wave)
        for block in self._decoder.decoder:
            wave = block(wave)
        return wave[:, 0, kept * int(self._decoder.total_upsample) :].clamp(-1, 1).float()

    def _convolved(self, quantised: Tensor) -> Tensor:
        """[B, width, T] through the first convolution, which looks a few frames back."""
        joint = recalled(self._quantised, quantised)
        self._quantised = joint[..., -self._decoder.pre_conv.padding :]
        return self._decoder.pre_conv(joint)[..., -quantised.shape[-1] :]

    def _transformed(self, x: Tensor) -> Tensor:
        """[B, width, T] through the transformer, whose positions go on from piece to piece."""
        place = torch.arange(self._done, self._done + x.shape[-1], device=x.device)
        self._done += x.shape[-1]
        seen = self._decoder.pre_transformer(
            inputs_embeds=x.transpose(1, 2), past_key_values=self._cache, use_cache=True, cache_position=place
        )
        return seen.last_hidden_state.transpose(1, 2)


def recalled(before: Tensor | None, now: Tensor) -> Tensor:
    """What is new after what is remembered, along the last axis."""
    return now if before is None else torch.cat([before, now], -1)


def frames_seen(decoder: Any) -> int:
    """How many frames the convolutions after the transformer look back, rounded up: from their kernels, dilations and rates."""
    rate, seen = 1, 0.0
    for stage in (*decoder.upsample, *decoder.decoder):
        for layer in stage.modules():
            if hasattr(layer, "right_pad"):  # a transposed convolution: its kernel reaches over right_pad samples of the next inputs
                seen += layer.right_pad / layer.conv.stride[0] / rate
                rate *= layer.conv.stride[0]
            elif hasattr(layer, "padding") and hasattr(layer, "conv"):
                seen += layer.padding / rate
    return math.ceil(seen)


def decoded(decoder: Any, codes: Tensor) -> Tensor:
    """[B, T, codebooks] → [B, T · 1920] float32, in pieces that bound the memory."""
    stream = WaveStream(decoder)
    return torch.cat([stream.feed(piece) for piece in codes.split(PIECE, 1)], -1)


def growing_pieces(first: int = 4, most: int = 32) -> Iterator[int]:
    """Frames of the pieces of a stream: a short one, so that sound comes soon, then longer ones, which cost less a frame."""
    while True:
        yield first
        first = min(2 * first, most)
