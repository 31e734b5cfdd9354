"""Deterministic noise for SNAC's decoder: a fixed function of layer and frame in place of a new draw for every call.

`data_prep/audio_codecs/snac_codec.py` imports this module when it loads the weights, since a layer is a class of torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np
import torch
from snac.layers import NoiseBlock
from torch import Tensor, nn

_window: ContextVar[tuple[int, int]] = ContextVar("window")
"""First frame that is being decoded, and the number of frames; one pair for each thread."""


class FrameNoise(nn.Module):
    """The package's `NoiseBlock` with the noise of `make_noise`: x + noise * linear(x), the same noise for all channels and rows."""

    def __init__(self, linear: nn.Module, layer: int) -> None:
        super().__init__()
        self.linear = linear
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, channels, samples] with the noise added."""
        first, frames = _window.get()
        noise = torch.from_numpy(make_noise(self.layer, first, frames, x.shape[-1] // frames))
        return x + noise.to(x) * self.linear(x)


@contextlib.contextmanager
def number_frames(first: int, frames: int) -> Iterator[None]:
    """Number the frames that are decoded while this context is open: `frames` frames of a clip, starting at frame `first`."""
    token = _window.set((first, frames))
    try:
        yield
    finally:
        _window.reset(token)


def make_noise(layer: int, first: int, frames: int, samples: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return standard normal noise [frames * samples] of one layer, with `samples` samples a frame. A frame's noise depends on its number
    alone."""
    each = [
        np.random.Generator(np.random.Philox(key=[layer, frame])).standard_normal(samples, np.float32)
        for frame in range(first, first + frames)
    ]
    return np.concatenate(each)


def fix_noise(model: nn.Module) -> None:
    """Replace every `NoiseBlock` of a SNAC model; names and values of the weights stay."""
    blocks = [(name, module) for name, module in model.named_modules() if isinstance(module, NoiseBlock)]
    for layer, (name, block) in enumerate(blocks):
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, FrameNoise(block.linear, layer))
