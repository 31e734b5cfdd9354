"""The decoder of the Qwen3-TTS codec for a CPU: it decodes new frames of any number of streams in one pass.

The samples of a stream do not depend, in any bit, on how its frames are cut into passes, nor on the other streams: see `frame_layers`. On a
GPU, `qwen3_tts_stream_decoder` decodes one stream after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .frame_layers import FrameConvolution, FramePass, TiledProduct, join_parts, join_products

if TYPE_CHECKING:
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Decoder

FRAMES_AT_ONCE = 64
"""Most frames in a pass, of all its streams; limits the memory to about 0.5 GB with the released codec."""
Layer = Callable[[Tensor, FramePass], Tensor]
"""[frames, channels, N] → [frames, channels', N']."""


class FrameStream:
    """One growing sequence of codes: how many frames are decoded, and what the decoder keeps of them."""

    def __init__(self, size: int) -> None:
        self.frames = 0
        self.earlier = torch.zeros(size)


class Qwen3TTSFrameDecoder:
    """The decoder of a loaded codec."""

    @torch.inference_mode()
    def __init__(self, decoder: Qwen3TTSTokenizerV2Decoder) -> None:
        """`decoder`: that of the 12 Hz codec, in fp32 on the CPU. Weights of convolutions are used or copied, whatever their layout
        needs."""
        self._first, self._rest = _Codebooks(decoder.quantizer.rvq_first), _Codebooks(decoder.quantizer.rvq_rest)
        convolutions = list[FrameConvolution]()
        (self._before,) = _convert(decoder.pre_conv, convolutions)
        self._transformer = _Transformer(decoder.pre_transformer)
        sizes = [convolutions.pop().size, *self._transformer.sizes]
        blocks = [*(block for pair in decoder.upsample for block in pair), *decoder.decoder]
        self._layers = [layer for block in blocks for layer in _convert(block, convolutions)]
        self._sizes = [size for size in [*sizes, *(one.size for one in convolutions)] if size]
        self._samples = int(decoder.total_upsample)

    def open(self) -> FrameStream:
        """Start a stream."""
        return FrameStream(sum(self._sizes))

    def feed(self, streams: Sequence[FrameStream], codes: Sequence[Tensor]) -> list[Tensor]:
        """Decode the next frames [T, codebooks], T ≥ 1, of each stream to samples [T · 1920] float32, in passes that limit the memory."""
        waves = [list[Tensor]() for _ in streams]
        for shares in divide_into_passes([len(one) for one in codes]):
            pieces = [codes[share.stream][share.start : share.stop] for share in shares]
            for share, wave in zip(shares, self._feed_once([streams[share.stream] for share in shares], pieces), strict=True):
                waves[share.stream].append(wave)
        return [torch.cat(one) for one in waves]

    @torch.inference_mode()
    def _feed_once(self, streams: Sequence[FrameStream], codes: Sequence[Tensor]) -> list[Tensor]:
        # Streams of equal length are decoded as one tensor.
        order = sorted(range(len(streams)), key=lambda number: len(codes[number]))
        lengths = [len(codes[number]) for number in order]
        frames = FramePass(lengths, torch.stack([streams[number].earlier for number in order]), self._sizes)
        starts = [streams[number].frames for number in order]
        positions = torch.cat([torch.arange(start, start + length) for start, length in zip(starts, lengths, strict=True)])
        wave = self._decode(torch.cat([codes[number] for number in order]), positions, frames)
        waves = dict(zip(order, wave.split([length * self._samples for length in lengths]), strict=True))
        for number, length, earlier in zip(order, lengths, torch.cat(frames.later, 1), strict=True):
            streams[number].frames += length
            streams[number].earlier = earlier
        return [waves[number] for number in range(len(streams))]

    def decode(self, codes: Tensor) -> Tensor:
        """Decode [B, T, codebooks], T ≥ 0, to [B, T · 1920] float32, in passes that limit the memory."""
        streams = [self.open() for _ in codes]
        return torch.stack(self.feed(streams, [*codes])) if codes.shape[1] else torch.zeros(len(codes), 0)

    def _decode(self, codes: Tensor, positions: Tensor, frames: FramePass) -> Tensor:
        """Decode [frames, codebooks], with the position of each frame in its stream [frames], to [frames · 1920]."""
        semantic = self._first.count
        x = self._first.embed(codes[:, :semantic]) + self._rest.embed(codes[:, semantic:])
        x = self._transformer.transform(self._before(x[..., None], frames)[..., 0], positions, frames)[..., None]
        for layer in self._layers:
            x = layer(x, frames)
        return x.flatten().clamp(-1, 1)


class PassShare(NamedTuple):
    """Frames [start, stop) of a stream, in one pass."""

    stream: int
    start: int
    stop: int


def divide_into_passes(lengths: Sequence[int]) -> list[list[PassShare]]:
    """Divide streams of so many frames into passes of at most `FRAMES_AT_ONCE` frames; none has two shares of a stream."""
    passes, free = list[list[PassShare]](), 0
    for stream, length in enumerate(lengths):
        start = 0
        while start < length:
            if not free:
                passes.append([])
                free = FRAMES_AT_ONCE
            stop = min(length, start + free)
            passes[-1].append(PassShare(stream, start, stop))
            free, start = free - (stop - start), stop
    return passes


class _Codebooks:
    """The codebooks of a residual quantizer and its output projection."""

    def __init__(self, quantizer: Any) -> None:
        entries = [layer._codebook for layer in quantizer.vq.layers]
        self.count = len(entries)
        self._tables = torch.stack([one.embedding_sum / one.cluster_usage.clamp(min=one.epsilon)[:, None] for one in entries])
        self._numbers = torch.arange(self.count)
        self._product = TiledProduct(quantizer.output_proj.weight[..., 0], None)

    def embed(self, codes: Tensor) -> Tensor:
        """[frames, codebooks] → [frames, width]. Raises `IndexError` for a code that its codebook does not have."""
        if codes.min() < 0:  # it would count from the end of the codebook
            raise IndexError(f"code {int(codes.min())} is in no codebook")
        return self._product.multiply_rows(self._tables[self._numbers, codes].sum(1))


class _Transformer:
    """The transformer between the quantizer and the convolutions; it attends to a window of frames."""

    def __init__(self, stock: Any) -> None:
        self._before, self._after = join_products(stock.input_proj), join_products(stock.output_proj)
        self._layers = [_TransformerLayer(layer, stock.window_size) for layer in stock.layers]
        self._norm, self._rotary, self._window = stock.norm, stock.rotary_emb, stock.window_size
        self.sizes = [layer.size for layer in self._layers]

    def transform(self, x: Tensor, positions: Tensor, frames: FramePass) -> Tensor:
        """[frames, width] → the same shape."""
        x = self._before.multiply_rows(x)
        turns = [one[0, :, None] for one in self._rotary(x, positions[None])]
        # Zeros in the place of frames before the first one have no weight.
        mask = torch.where(torch.arange(self._window) < self._window - 1 - positions[:, None], -torch.inf, 0.0)[:, None]
        for layer in self._layers:
            x = layer.transform(x, turns, mask, frames)
        return self._after.multiply_rows(_normalize(x, self._norm))


class _TransformerLayer:
    """Attention and MLP."""

    def __init__(self, stock: Any, window: int) -> None:
        attention, self._window = stock.self_attn, window
        self._head, self._scaling = attention.head_dim, attention.scaling
        self._heads, self._key_heads = (len(one.weight) // self._head for one in (attention.q_proj, attention.k_proj))
        self._to_heads = join_products(attention.q_proj, attention.k_proj, attention.v_proj)
        self._from_heads = join_products(attention.o_proj)
        self._to_mlp, self._from_mlp = join_products(stock.mlp.gate_proj, stock.mlp.up_proj), join_products(stock.mlp.down_proj)
        self._activation, self._norms = stock.mlp.act_fn, (stock.input_layernorm, stock.post_attention_layernorm)
        self._scales = stock.self_attn_layer_scale.scale, stock.mlp_layer_scale.scale
        self.size = (window - 1) * 2 * self._key_heads * self._head

    def transform(self, x: Tensor, turns: Sequence[Tensor], mask: Tensor, frames: FramePass) -> Tensor:
        """[frames, width] → the same shape. `turns`: cosines and sines [frames, 1, head]; `mask`: [frames, 1, window]."""
        x = torch.addcmul(x, self._scales[0], self._attend(_normalize(x, self._norms[0]), turns, mask, frames))
        gate, up = self._to_mlp.multiply_rows(_normalize(x, self._norms[1])).chunk(2, 1)
        return torch.addcmul(x, self._scales[1], self._from_mlp.multiply_rows(self._activation(gate) * up))

    def _attend(self, x: Tensor, turns: Sequence[Tensor], mask: Tensor, frames: FramePass) -> Tensor:
        count, both = len(x), self._heads + self._key_heads
        x = self._to_heads.multiply_rows(x)
        rotated = x[:, : both * self._head].view(count, both, self._head)
        low, high = rotated.chunk(2, -1)
        rotated = rotated * turns[0] + torch.cat([-high, low], -1) * turns[1]
        query = rotated[:, : self._heads].reshape(count * self._key_heads, -1, self._head)
        new = torch.cat([rotated[:, self._heads :].flatten(1), x[:, both * self._head :]], 1)
        windows = join_parts([*frames.read_windows(new[..., None], self._window, 1)]).view(count, 2, -1, self._head, self._window)
        keys, values = (windows[:, part].reshape(-1, self._head, self._window) for part in (0, 1))
        scores = torch.bmm(query, keys).view(count, self._heads, -1) * self._scaling + mask
        weights = scores.softmax(-1).view(count * self._key_heads, -1, self._window)
        return self._from_heads.multiply_rows(torch.bmm(weights, values.mT).view(count, -1))


def _normalize(x: Tensor, stock: Any) -> Tensor:
    """The root mean square norm of [frames, width]."""
    return F.rms_norm(x, x.shape[1:], stock.weight, stock.variance_epsilon)


def _convert(stock: Any, convolutions: list[FrameConvolution]) -> list[Layer]:
    """The layers of a module of the decoder; its convolutions are also appended to the list, in the order of their calls.

    Raises `TypeError` for a module that the codec does not have."""
    from qwen_tts.core.tokenizer_12hz import modeling_qwen3_tts_tokenizer_v2 as modeling

    def convolve(causal: Any) -> FrameConvolution:
        convolutions.append(FrameConvolution(causal.conv))
        return convolutions[-1]

    match stock:
        case modeling.SnakeBeta():
            return [_make_snake(stock)]
        case modeling.Qwen3TTSTokenizerV2CausalConvNet() | modeling.Qwen3TTSTokenizerV2CausalTransConvNet():
            return [convolve(stock)]
        case modeling.Qwen3TTSTokenizerV2ConvNeXtBlock():
            return [_make_convnext(stock, convolve(stock.dwconv))]
        case modeling.Qwen3TTSTokenizerV2DecoderDecoderResidualUnit():
            layers: list[Layer] = [_make_snake(stock.act1), convolve(stock.conv1), _make_snake(stock.act2), convolve(stock.conv2)]
            return [_make_residual(layers)]
        case modeling.Qwen3TTSTokenizerV2DecoderDecoderBlock():
            return [layer for one in stock.block for layer in _convert(one, convolutions)]
    raise TypeError(f"{type(stock).__name__} is not a layer of the 12 Hz codec's decoder; use the qwen-tts that pyproject.toml names")


def _make_snake(stock: Any) -> Layer:
    """The codec's activation x + sin²(a·x) / b, whose a and b are computed once."""
    frequency, magnitude = stock.alpha.exp()[:, None], (1.0 / (stock.beta.exp() + stock.no_div_by_zero))[:, None]
    return lambda x, _: (x * frequency).sin_().pow_(2).mul_(magnitude).add_(x)


def _make_residual(layers: Sequence[Layer]) -> Layer:
    def add(x: Tensor, frames: FramePass) -> Tensor:
        y = x
        for layer in layers:
            y = layer(y, frames)
        return y.add_(x)

    return add


def _make_convnext(stock: Any, convolution: FrameConvolution) -> Layer:
    widen, narrow = join_products(stock.pwconv1), join_products(stock.pwconv2)

    def add(x: Tensor, frames: FramePass) -> Tensor:
        positions = x.shape[2]
        rows = stock.norm(convolution(x, frames).transpose(1, 2).flatten(0, 1))
        y = stock.gamma * narrow.multiply_rows(stock.act(widen.multiply_rows(rows, positions)), positions)
        return x + y.view(len(x), positions, -1).transpose(1, 2)

    return add
