"""The decoder of the Qwen3-TTS codec for a GPU: it decodes codes in chunks, and every sample equals that of decoding all codes at once.

The codec's decoder is causal: a transformer over frames with a sliding window, then convolutions. The stock package decodes chunks of 300
frames (24 s), each after 25 frames of context. That is less than the transformer attends to, so the sound differs after each boundary. Here
the transformer keeps its keys and values from chunk to chunk, and each convolution its earlier inputs, so no frame is decoded twice.

Streams are decoded one after another: a GPU chooses its kernels by the size of the batch, so that the last bits of a stream would depend on
the others. On a CPU, `qwen3_tts_frame_decoder` decodes them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import DynamicCache

from .qwen_tts_import import import_qwen_tts
from .streamed_convolutions import StreamedDecoder

if TYPE_CHECKING:
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Decoder

CHUNK_FRAMES = 300
"""Frames per chunk when the sound is not streamed: 24 s; limits the memory of the convolutions."""


class _ConstantSnake(nn.Module):
    """The codec's activation x + sin²(a·x) / b with the same operations on x. The stock module computes a and b from its parameters in each
    call."""

    @torch.no_grad()
    def __init__(self, stock: Any) -> None:
        super().__init__()
        self.frequency = nn.Buffer(stock.alpha.exp()[None, :, None])
        self.magnitude = nn.Buffer((1.0 / (stock.beta.exp() + stock.no_div_by_zero))[None, :, None])

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, L] → the same shape."""
        return (x * self.frequency).sin_().pow_(2).mul_(self.magnitude).add_(x)


class _ConstantCodebook(nn.Module):
    """A codebook whose entries are computed once. The stock module divides all of them in each call."""

    @torch.no_grad()
    def __init__(self, stock: Any) -> None:
        super().__init__()
        self.entries = nn.Buffer(stock.embedding_sum / stock.cluster_usage.clamp(min=stock.epsilon)[:, None])

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, T] → [B, T, width]."""
        return F.embedding(codes, self.entries)


class Qwen3TTSStreamDecoder:
    """The decoder of a loaded codec, for any number of streams, which take turns in one thread and do not depend on each other."""

    def __init__(self, decoder: Qwen3TTSTokenizerV2Decoder) -> None:
        """`decoder`: that of the 12 Hz codec; its weights are used, not copied, except those of the codebooks."""
        import_qwen_tts()
        from qwen_tts.core.tokenizer_12hz import modeling_qwen3_tts_tokenizer_v2 as modeling

        kinds = modeling.Qwen3TTSTokenizerV2CausalConvNet, modeling.Qwen3TTSTokenizerV2CausalTransConvNet
        self.streamed = StreamedDecoder(decoder, kinds)
        constant = {modeling.SnakeBeta: _ConstantSnake, modeling.EuclideanCodebook: _ConstantCodebook}
        for parent in [*self.streamed.decoder.modules()]:
            for name, layer in [*parent.named_children()]:
                if type(layer) in constant:
                    setattr(parent, name, constant[type(layer)](layer))

    def open(self) -> Qwen3TTSStream:
        """Start a stream."""
        return Qwen3TTSStream(self)

    def feed(self, streams: Sequence[Qwen3TTSStream], codes: Sequence[Tensor]) -> list[Tensor]:
        """Decode the next frames [T, codebooks], T ≥ 1, of each stream to samples [T · 1920] float32, one stream after another, in chunks
        that limit the memory."""
        return [feed_in_chunks(stream, frames[None])[0] for stream, frames in zip(streams, codes, strict=True)]

    def decode(self, codes: Tensor) -> Tensor:
        """Decode [B, T, codebooks] to [B, T · 1920] float32, in chunks that limit the memory."""
        return feed_in_chunks(self.open(), codes)


class Qwen3TTSStream:
    """Decodes a growing batch of code sequences. Owns the decoder's state of earlier frames."""

    def __init__(self, decoder: Qwen3TTSStreamDecoder) -> None:
        self._streamed, self._layers = decoder.streamed, decoder.streamed.decoder
        self._earlier: list[Tensor | None] = []
        self._cache = DynamicCache(config=self._layers.pre_transformer.config)
        self._position = 0

    @torch.inference_mode()
    def feed(self, codes: Tensor) -> Tensor:
        """Decode the next frames [B, T, codebooks] on any device, T ≥ 1, to their samples [B, T · 1920] float32 on the codec's."""
        moved = codes.to(self._streamed.device)
        return self._streamed.resume(self._earlier, lambda: self._decode(moved))

    def _decode(self, codes: Tensor) -> Tensor:
        wave = self._transform(self._layers.pre_conv(self._layers.quantizer.decode(codes.transpose(1, 2))))
        for blocks in self._layers.upsample:
            for block in blocks:
                wave = block(wave)
        for block in self._layers.decoder:
            wave = block(wave)
        return wave[:, 0].clamp(-1, 1).float()

    def _transform(self, x: Tensor) -> Tensor:
        """Pass [B, width, T] through the transformer, whose positions continue from chunk to chunk."""
        positions = torch.arange(self._position, self._position + x.shape[-1], device=x.device)
        self._position += x.shape[-1]
        output = self._layers.pre_transformer(
            inputs_embeds=x.transpose(1, 2), past_key_values=self._cache, use_cache=True, cache_position=positions
        )
        return output.last_hidden_state.transpose(1, 2)


def feed_in_chunks(stream: Qwen3TTSStream, codes: Tensor) -> Tensor:
    """Decode the next frames [B, T, codebooks] of a stream to [B, T · 1920] float32, in chunks that limit the memory."""
    return torch.cat([stream.feed(piece) for piece in codes.split(CHUNK_FRAMES, 1)], -1)
