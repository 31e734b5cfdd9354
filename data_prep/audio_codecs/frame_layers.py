"""Layers of causal decoders over the frames of several streams at once, on a CPU: no bit of a frame depends on the other frames.

A product with a weight is computed in tiles of a fixed number of positions, so that one frame has the same kernel and the same order of
sums as a hundred. Which frames of a stream are decoded together, and which other streams with them, therefore changes nothing. torch's own
convolutions and linear layers choose their kernel by the number of frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TILE_FRAMES = 4
"""Frames in a tile where a frame has few positions: with fewer, weights are read more often; with more, single frames waste more."""
WIDE_FRAME = 32
"""A frame of at least so many positions is a tile of its own."""
LARGEST_PART = 2**19
"""Numbers of windows that exist at once, 2 MB: more leave the processor's cache, and are new pages of memory each time."""
FEWEST_OUTPUTS = 4
"""A product with a single output has another kernel, whose sums depend on the number of tiles."""


class FramePass:
    """The frames of several streams in one pass through a decoder, and the earlier inputs that its causal layers keep.

    The tensors of a pass are [frames, channels, positions], the frames of a stream one after another."""

    def __init__(self, lengths: Sequence[int], earlier: Tensor, sizes: Sequence[int]) -> None:
        """`lengths`: frames ≥ 1 of each stream. `earlier`: [streams, sum of `sizes`], the columns of `later` after the frames before; zeros
        at the beginning. `sizes`: numbers that each causal layer keeps, in the order in which the layers are called."""
        self._groups = [(length, len([*streams])) for length, streams in groupby(lengths)]
        self._earlier: Iterator[Tensor] = iter(earlier.split([*sizes], 1))
        self.later: list[Tensor] = []
        """[streams, size] of each causal layer that was called: what the next frames need."""

    def read_windows(self, x: Tensor, kernel: int, dilation: int) -> Iterator[Tensor]:
        """Yield [frames, channels · kernel, N] of [frames, channels, N], in parts of successive frames that limit the memory: each position
        with the earlier ones that a causal convolution multiplies, the oldest first. `kernel` ≥ 2."""
        channels, positions = x.shape[1:]
        lookback = (kernel - 1) * dilation
        earlier = next(self._earlier).view(-1, channels, lookback)
        most = max(1, LARGEST_PART // (channels * kernel * positions))
        first_stream = first_frame = 0
        later = []
        for length, streams in self._groups:  # streams of equal length are one tensor
            new = x[first_frame : first_frame + streams * length].view(streams, length, channels, positions)
            joint = x.new_empty(streams, channels, lookback + length * positions)
            joint[..., :lookback] = earlier[first_stream : first_stream + streams]
            joint[..., lookback:].unflatten(2, (length, positions)).copy_(new.transpose(1, 2))
            later.append(joint[..., -lookback:].reshape(streams, -1))
            per_stream, per_channel, _ = joint.stride()
            shape, strides = (streams, length, channels, kernel, positions), (per_stream, positions, per_channel, dilation, 1)
            for whole in joint.as_strided(shape, strides).split(max(1, most // length)):
                for part in whole.split(most, 1) if length > most else (whole,):
                    yield part.reshape(-1, channels * kernel, positions)
            first_stream, first_frame = first_stream + streams, first_frame + streams * length
        self.later.append(join_parts(later))


def join_parts(parts: Sequence[Tensor]) -> Tensor:
    """The parts one after another; a single one is not copied."""
    return torch.cat([*parts]) if len(parts) > 1 else parts[0]


class TiledProduct:
    """The product of a weight with the channels of each position."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """`weight`: [out, in]; `bias`: [out]."""
        self._outputs = len(weight)
        missing = max(0, FEWEST_OUTPUTS - len(weight))
        self._weight = F.pad(weight, (0, 0, 0, missing)) if missing else weight
        self._bias = weight.new_zeros(len(self._weight)) if bias is None else F.pad(bias, (0, missing))

    def multiply_rows(self, x: Tensor, positions: int = 1) -> Tensor:
        """[frames · positions, in] → [frames · positions, out]."""
        tile = TILE_FRAMES * positions
        missing = -len(x) % tile
        tiles = (F.pad(x, (0, 0, 0, missing)) if missing else x).view(-1, tile, x.shape[1])
        y = torch.baddbmm(self._bias, tiles, self._weight.t().expand(len(tiles), -1, -1))
        return y.view(-1, len(self._weight))[: len(x), : self._outputs]

    def multiply_frames(self, x: Tensor) -> Tensor:
        """[frames, in, N] → [frames, out, N]."""
        frames, _, positions = x.shape
        if positions < WIDE_FRAME:
            rows = self.multiply_rows(x.transpose(1, 2).flatten(0, 1), positions)
            return rows.view(frames, positions, -1).transpose(1, 2)
        return torch.baddbmm(self._bias[:, None], self._weight.expand(frames, -1, -1), x)[:, : self._outputs]


def join_products(*layers: nn.Linear) -> TiledProduct:
    """One product for linear layers that have the same input; its outputs are theirs, one after another."""
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    weights: list[Tensor] = [layer.weight for layer in layers]
    return TiledProduct(torch.cat(weights), torch.cat(biases) if biases else None)


class FrameConvolution:
    """A causal convolution of stride 1, or a causal transposed one, without padding of its own."""

    def __init__(self, convolution: nn.Conv1d | nn.ConvTranspose1d) -> None:
        """Raises `ValueError` for groups of several channels."""
        (kernel,), (stride,), (self._dilation,) = convolution.kernel_size, convolution.stride, convolution.dilation
        weight, bias, channels = convolution.weight, convolution.bias, convolution.in_channels
        self._upsampling, self._depthwise = stride, convolution.groups > 1
        if convolution.groups not in (1, channels) or (self._depthwise and (stride > 1 or convolution.out_channels != channels)):
            raise ValueError(f"{convolution} has groups of several channels; only depthwise convolutions are supported")
        self._kernel = kernel
        if isinstance(convolution, nn.ConvTranspose1d):
            # Output n · stride + j is the sum, over the last inputs n - i, of input · weight i · stride + j.
            self._kernel = -(-kernel // stride)
            parts = F.pad(weight, (0, self._kernel * stride - kernel)).view(channels, -1, self._kernel, stride).flip(2)
            weight = parts.permute(1, 3, 0, 2)  # [out, stride, in, kernel]
            bias = None if bias is None else bias.repeat_interleave(stride)
        if self._depthwise:
            self._taps, self._bias = weight[:, 0, :, None], weight.new_zeros(channels) if bias is None else bias
        else:
            self._product = TiledProduct(weight.reshape(-1, channels * self._kernel), bias)
        self.size = (self._kernel - 1) * self._dilation * channels
        """Numbers that it keeps of each stream."""

    def __call__(self, x: Tensor, frames: FramePass) -> Tensor:
        """[frames, in, N] → [frames, out, N · upsampling]."""
        parts = frames.read_windows(x, self._kernel, self._dilation) if self._kernel > 1 else [x]
        if self._depthwise:
            return (join_parts([*parts]).view(*x.shape[:2], self._kernel, -1) * self._taps).sum(2) + self._bias[:, None]
        if x.shape[2] < WIDE_FRAME:
            parts = [join_parts([*parts])]  # a tile has several frames, of any stream
        y = join_parts([self._product.multiply_frames(part) for part in parts])
        if self._upsampling == 1:
            return y
        return y.unflatten(1, (-1, self._upsampling)).transpose(2, 3).flatten(2)
