"""Causal convolutions that keep their earlier inputs, so that a decoder decodes in chunks as if it saw the whole sequence."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class StreamedConvolution(nn.Module):
    """A causal convolution of stride 1, or a causal transposed one: the last inputs of a chunk are put before those of the next one."""

    def __init__(self, convolution: nn.Conv1d | nn.ConvTranspose1d) -> None:
        """`convolution` must have no padding of its own; raises `ValueError` otherwise."""
        super().__init__()
        self.convolution = convolution
        (kernel,), (stride,), (dilation,) = convolution.kernel_size, convolution.stride, convolution.dilation
        self.transposed = isinstance(convolution, nn.ConvTranspose1d)
        if not self.transposed and stride != 1:
            raise ValueError(f"{convolution} skips inputs; a decoder has no such convolution")
        if any(convolution.padding) or any(convolution.output_padding):
            raise ValueError(f"{convolution} has padding of its own, so that its outputs do not begin at the first input")
        self.upsampling = stride
        self.lookback = -(-(kernel - stride) // stride) if self.transposed else (kernel - 1) * dilation
        """Number of earlier inputs that an output depends on."""
        self.earlier: Tensor | None = None
        """[B, channels, lookback]; None at the beginning, where a causal convolution sees zeros."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, channels, L] to [B, channels, L · upsampling]."""
        if self.lookback:
            joint = F.pad(x, (self.lookback, 0)) if self.earlier is None else torch.cat([self.earlier, x], -1)
            self.earlier = joint[..., -self.lookback :].clone()  # a view would keep the whole chunk in memory
        else:
            joint = x
        outputs: Tensor = self.convolution(joint)
        if self.transposed:  # it also has the outputs of the earlier inputs, and parts of later ones
            return outputs[..., self.lookback * self.upsampling : joint.shape[-1] * self.upsampling]
        return outputs


class StreamedDecoder:
    """A copy of a loaded decoder's modules on the same weights, with streamed convolutions. Any number of streams can take turns with it in
    one thread."""

    def __init__(self, decoder: nn.Module, kinds: tuple[type[nn.Module], ...]) -> None:
        """`kinds`: the classes of the causal layers, whose convolution is their `conv`."""
        shared = {id(tensor): tensor for tensor in itertools.chain(decoder.parameters(), decoder.buffers())}
        self.decoder: Any = copy.deepcopy(decoder, shared)
        for parent in [*self.decoder.modules()]:
            for name, layer in [*parent.named_children()]:
                if isinstance(layer, kinds):
                    convolution: Any = layer.conv
                    setattr(parent, name, StreamedConvolution(convolution))
        self._convolutions = [module for module in self.decoder.modules() if isinstance(module, StreamedConvolution)]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = next(self.decoder.parameters()).device
        return device

    def resume(self, earlier: list[Tensor | None], decode: Callable[[], Tensor]) -> Tensor:
        """Return the result of `decode` with the convolutions as they were after the last chunk of a stream. `earlier` is the state of that
        stream, empty before its first chunk, and is updated; after an exception the stream cannot be continued."""
        for convolution, inputs in itertools.zip_longest(self._convolutions, earlier):
            convolution.earlier = inputs
        try:
            output = decode()
            earlier[:] = [convolution.earlier for convolution in self._convolutions]
        finally:
            for convolution in self._convolutions:
                convolution.earlier = None  # else the modules keep the inputs of a stream that has ended
        return output
