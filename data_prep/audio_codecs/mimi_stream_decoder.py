"""Decodes Mimi's codes to sound in chunks; every sample equals that of decoding all codes at once.

Mimi's decoder is causal: an upsampling convolution, a transformer with a window of `sliding_window` positions (10 s), then convolutions.
Here the transformer keeps its keys and values from chunk to chunk, and each convolution its earlier inputs, so no frame is decoded twice.

`MimiModel.decode` of transformers 4 ignores the window, so after 10 s its sound differs from that of transformers 5, of Mimi's makers
(`context` in moshi/models/loaders.py of kyutai-labs/moshi), and of this module.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import DynamicCache, MimiModel
from transformers.models.mimi.modeling_mimi import MimiConv1d, MimiConvTranspose1d

from overtone.data_prep.parallel.torch_settings import disable_tf32
from overtone.finetune.errors import UserError

from .streamed_convolutions import StreamedDecoder

CHUNK_FRAMES = 125
"""Frames per chunk when the sound is not streamed: 10 s; limits the memory of the convolutions and of attention."""


class MimiStreamDecoder:
    """The decoder of a loaded codec, for any number of streams, which take turns in one thread and do not depend on each other."""

    def __init__(self, model: MimiModel) -> None:
        """The weights of `model` are used, not copied. Raises `UserError` if its convolutions are not causal."""
        if not model.config.use_causal_conv or model.config.trim_right_ratio != 1.0 or model.config.pad_mode != "constant":
            raise UserError("the codec's convolutions are not causal, as those of the released Mimi are; use a model with that codec")
        # transformers 5 puts the parts of the decoder, with other names, into a model of their own.
        parts = model.decoder if hasattr(model.decoder, "decoder_seanet") else model
        convolutions = parts.decoder_seanet if parts is not model else model.decoder
        modules = nn.ModuleDict({"upsampling": parts.upsample, "transformer": parts.decoder_transformer, "convolutions": convolutions})
        self.quantizer, self.config = model.quantizer, model.config
        self.streamed = StreamedDecoder(modules, (MimiConv1d, MimiConvTranspose1d))

    def decode(self, codes: Tensor) -> Tensor:
        """Decode [B, T, codebooks], T ≥ 0, to [B, T · 1920] float32, in chunks that limit the memory."""
        stream = MimiStream(self)
        pieces = codes.split(CHUNK_FRAMES, 1) if codes.shape[1] else ()
        return torch.cat([torch.zeros(len(codes), 0, device=codes.device), *(stream.feed(piece) for piece in pieces)], -1)


class MimiStream:
    """Decodes a growing batch of code sequences. Owns the decoder's state of earlier frames."""

    def __init__(self, decoder: MimiStreamDecoder) -> None:
        self._decoder, self._layers = decoder, decoder.streamed.decoder
        self._earlier: list[Tensor | None] = []
        self._cache, self._position = DynamicCache(), 0

    @torch.inference_mode()
    def feed(self, codes: Tensor) -> Tensor:
        """Decode the next frames [B, T, codebooks] on any device, T ≥ 1, to their samples [B, T · 1920] float32 in [-1, 1] on the codec's.

        A code that is not in the codebook (CSM has a few more; an untrained one samples them) is replaced by the last one.
        """
        known = codes.to(self._decoder.streamed.device).clamp(max=self._decoder.config.codebook_size - 1)
        with disable_tf32():  # its rounding depends on the size of the chunk
            return self._decoder.streamed.resume(self._earlier, lambda: self._decode(known))

    def _decode(self, codes: Tensor) -> Tensor:
        hidden = self._layers["upsampling"](self._decoder.quantizer.decode(codes.transpose(1, 2)))
        wave: Tensor = self._layers["convolutions"](self._transform(hidden))
        return wave[:, 0].clamp(-1, 1).float()

    def _transform(self, x: Tensor) -> Tensor:
        """Pass [B, width, P] through the transformer, whose positions continue from chunk to chunk."""
        positions = torch.arange(self._position, self._position + x.shape[-1], device=x.device)
        self._position += x.shape[-1]
        distance = positions[:, None] - torch.arange(self._position, device=x.device)
        mask = (distance >= 0) & (distance < self._decoder.config.sliding_window)
        output = self._layers["transformer"](
            x.transpose(1, 2),
            attention_mask=torch.where(mask, 0.0, -torch.inf).to(x.dtype).expand(len(x), 1, -1, -1),
            position_ids=positions[None],
            past_key_values=self._cache,
            use_cache=True,
        )
        return output[0].transpose(1, 2)
