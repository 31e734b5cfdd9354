"""From Mimi's codes to sound in chunks, with every sample as if the codes had been decoded at once.

Mimi's decoder is causal: an upsampling convolution, a transformer with a window of `sliding_window` positions (10 s), then convolutions.
Here the transformer keeps its keys and values from chunk to chunk, and the convolutions get as many earlier positions as they look back.

`MimiModel.decode` of transformers 4 ignores the window, so after 10 s its sound differs from that of transformers 5, of Mimi's makers
(`context` in moshi/models/loaders.py of kyutai-labs/moshi), and of this module.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.mimi.modeling_mimi import MimiConv1d, MimiConvTranspose1d

from data_prep.parallel.devices import disable_tf32
from finetune.errors import UserError

CHUNK_FRAMES = 125
"""Frames per chunk when nobody waits for the sound: 10 s; limits the memory of the convolutions and of attention."""


class MimiStream:
    """Decodes a growing batch of code sequences. Owns the decoder's state from earlier frames."""

    def __init__(self, model: Any) -> None:
        """`model`: a `MimiModel`. Raises `UserError` if its convolutions see the future."""
        if not model.config.use_causal_conv or model.config.trim_right_ratio != 1.0 or model.config.pad_mode != "constant":
            raise UserError("the codec's convolutions are not causal, as those of the released Mimi are; use a model with that codec")
        # transformers 5 puts the parts of the decoder, with other names, into a model of their own.
        parts = model.decoder if hasattr(model.decoder, "decoder_seanet") else model
        self._model, self._upsampling, self._transformer = model, parts.upsample, parts.decoder_transformer
        self._convolutions = parts.decoder_seanet if parts is not model else model.decoder
        self._cache, self._position, self._lookback = DynamicCache(), 0, count_lookback(self._convolutions)
        self._frame: Tensor | None = None
        self._hidden: Tensor | None = None

    @torch.inference_mode()
    def feed(self, codes: Tensor) -> Tensor:
        """The next frames [B, T, codebooks], T ≥ 1 → their samples [B, T · 1920] float32 in [-1, 1].

        A code that is not in the codebook (CSM has a few more; an untrained one samples them) is replaced by the last one.
        """
        known = codes.clamp(max=self._model.config.codebook_size - 1)
        with disable_tf32():  # its rounding depends on the size of the chunk
            hidden = self._transform(self._upsample(self._model.quantizer.decode(known.transpose(1, 2))))
            joint = hidden if self._hidden is None else torch.cat([self._hidden, hidden], -1)
            self._hidden = joint[..., -self._lookback :]
            wave = self._convolutions(joint)[:, 0]
        return wave[:, (joint.shape[-1] - hidden.shape[-1]) * wave.shape[1] // joint.shape[-1] :].clamp(-1, 1).float()

    def _upsample(self, frames: Tensor) -> Tensor:
        """[B, width, T] → [B, width, 2·T]; each output sees at most the frame before its own."""
        joint = frames if self._frame is None else torch.cat([self._frame, frames], -1)
        self._frame = joint[..., -1:]
        outputs: Tensor = self._upsampling(joint)
        return outputs[..., outputs.shape[-1] * (joint.shape[-1] - frames.shape[-1]) // joint.shape[-1] :]

    def _transform(self, x: Tensor) -> Tensor:
        """[B, width, P] through the transformer, whose positions continue from chunk to chunk."""
        positions = torch.arange(self._position, self._position + x.shape[-1], device=x.device)
        self._position += x.shape[-1]
        distance = positions[:, None] - torch.arange(self._position, device=x.device)
        mask = (distance >= 0) & (distance < self._model.config.sliding_window)
        output = self._transformer(
            x.transpose(1, 2),
            attention_mask=torch.where(mask, 0.0, -torch.inf).to(x.dtype).expand(len(x), 1, -1, -1),
            position_ids=positions[None],
            past_key_values=self._cache,
            use_cache=True,
        )
        return output[0].transpose(1, 2)


def count_lookback(decoder: Any) -> int:
    """Number of its inputs that the convolutions of a `MimiDecoder` look back, rounded up, from their kernels, dilations and strides."""
    rate, lookback = 1, 0.0
    for layer in decoder.modules():
        if isinstance(layer, MimiConvTranspose1d):  # its kernel covers `padding_right` samples of the next inputs
            lookback += layer.padding_right / layer.conv.stride[0] / rate
            rate *= layer.conv.stride[0]
        elif isinstance(layer, MimiConv1d):
            lookback += int(layer.padding_total) / rate
    return math.ceil(lookback)


def decode_codes(model: Any, codes: Tensor) -> Tensor:
    """[B, T, codebooks], T ≥ 0 → [B, T · 1920] float32, in chunks that limit the memory."""
    stream = MimiStream(model)
    pieces = codes.split(CHUNK_FRAMES, 1) if codes.shape[1] else ()
    return torch.cat([torch.zeros(len(codes), 0, device=codes.device), *(stream.feed(piece) for piece in pieces)], -1)
