"""From codes to sound in chunks, with every sample as if the codes had been decoded at once.

The codec's decoder is causal: a transformer over frames with a sliding window, then convolutions. The stock package decodes chunks of 300
frames (24 s), each after 25 frames of context. That is less than the transformer attends to, so the sound differs after each boundary. Here
the transformer keeps its keys and values from chunk to chunk, and the convolutions get as many earlier frames as they look back.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

CHUNK_FRAMES = 300
"""Frames per chunk when nobody waits for the sound: 24 s; limits the memory of the convolutions."""


class StreamingCodecDecoder:
    """Decodes a growing batch of code sequences. Owns the decoder's state from earlier frames."""

    def __init__(self, decoder: Any) -> None:
        """`decoder`: the `Qwen3TTSTokenizerV2Decoder` of the 12 Hz codec."""
        self._decoder = decoder
        self._lookback = count_lookback_frames(decoder)
        self._cache = DynamicCache(config=decoder.pre_transformer.config)
        self._quantised: Tensor | None = None
        self._hidden: Tensor | None = None
        self._position = 0

    @torch.inference_mode()
    def feed(self, codes: Tensor) -> Tensor:
        """The next frames [B, T, codebooks], T ≥ 1 → their samples [B, T · 1920] float32."""
        hidden = self._transform(self._convolve(self._decoder.quantizer.decode(codes.transpose(1, 2))))
        wave = prepend_context(self._hidden, hidden)
        context = wave.shape[-1] - hidden.shape[-1]
        self._hidden = wave[..., -self._lookback :]
        for blocks in self._decoder.upsample:
            for block in blocks:
                wave = block(wave)
        for block in self._decoder.decoder:
            wave = block(wave)
        return wave[:, 0, context * int(self._decoder.total_upsample) :].clamp(-1, 1).float()

    def _convolve(self, quantised: Tensor) -> Tensor:
        """[B, width, T] through the first convolution, which looks back a few frames."""
        joint = prepend_context(self._quantised, quantised)
        self._quantised = joint[..., -self._decoder.pre_conv.padding :]
        return self._decoder.pre_conv(joint)[..., -quantised.shape[-1] :]

    def _transform(self, x: Tensor) -> Tensor:
        """[B, width, T] through the transformer, whose positions continue from chunk to chunk."""
        positions = torch.arange(self._position, self._position + x.shape[-1], device=x.device)
        self._position += x.shape[-1]
        output = self._decoder.pre_transformer(
            inputs_embeds=x.transpose(1, 2), past_key_values=self._cache, use_cache=True, cache_position=positions
        )
        return output.last_hidden_state.transpose(1, 2)


def prepend_context(before: Tensor | None, now: Tensor) -> Tensor:
    """Concatenate earlier and new values along the last axis."""
    return now if before is None else torch.cat([before, now], -1)


def count_lookback_frames(decoder: Any) -> int:
    """Number of frames that the convolutions after the transformer look back, rounded up, from their kernels, dilations and rates."""
    rate, lookback = 1, 0.0
    for stage in (*decoder.upsample, *decoder.decoder):
        for layer in stage.modules():
            if hasattr(layer, "right_pad"):  # a transposed convolution: its kernel covers right_pad samples of the next inputs
                lookback += layer.right_pad / layer.conv.stride[0] / rate
                rate *= layer.conv.stride[0]
            elif hasattr(layer, "padding") and hasattr(layer, "conv"):
                lookback += layer.padding / rate
    return math.ceil(lookback)


def decode_codes(decoder: Any, codes: Tensor) -> Tensor:
    """[B, T, codebooks] → [B, T · 1920] float32, in chunks that limit the memory."""
    stream = StreamingCodecDecoder(decoder)
    return torch.cat([stream.feed(piece) for piece in codes.split(CHUNK_FRAMES, 1)], -1)
