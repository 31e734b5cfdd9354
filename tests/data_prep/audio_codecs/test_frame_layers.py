"""Tests of `overtone.data_prep.audio_codecs.frame_layers`, with torch's padded convolutions over the whole sequence as reference."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overtone.data_prep.audio_codecs import frame_layers
from overtone.data_prep.audio_codecs.frame_layers import FrameConvolution, FramePass, TiledProduct, join_products

LAYERS = {
    "wide kernel": nn.Conv1d(16, 32, 7),
    "dilated": nn.Conv1d(16, 16, 7, dilation=9),
    "pointwise": nn.Conv1d(16, 32, 1, bias=False),
    "one output": nn.Conv1d(16, 1, 7),
    "depthwise": nn.Conv1d(16, 16, 7, groups=16),
    "upsampling": nn.ConvTranspose1d(16, 32, 8, 4),
    "without overlap": nn.ConvTranspose1d(16, 32, 2, 2, bias=False),
    "uneven": nn.ConvTranspose1d(16, 32, 7, 3),
}
Lengths = list[int]


def convolve_whole(layer: nn.Conv1d | nn.ConvTranspose1d, x: Tensor) -> Tensor:
    """[channels, L] → [out, L · stride]."""
    if isinstance(layer, nn.ConvTranspose1d):
        y: Tensor = layer(x)
        return y[:, : x.shape[1] * layer.stride[0]]
    return layer(F.pad(x, ((layer.kernel_size[0] - 1) * layer.dilation[0], 0)))  # type: ignore[no-any-return]  # of torch


def convolve(layer: FrameConvolution, streams: list[Tensor], passes: list[dict[int, int]], positions: int) -> list[Tensor]:
    """Results [out, …] of streams [channels, frames · positions], in passes of {stream: frames}."""
    earlier, done = [torch.zeros(layer.size) for _ in streams], [0] * len(streams)
    found: list[list[Tensor]] = [[] for _ in streams]
    for lengths in passes:
        pieces = [streams[one][:, done[one] * positions :][:, : length * positions] for one, length in lengths.items()]
        frames = FramePass([*lengths.values()], torch.stack([earlier[one] for one in lengths]), [layer.size] if layer.size else [])
        x = torch.cat([piece.unflatten(1, (-1, positions)).transpose(0, 1) for piece in pieces])
        for one, y in zip(lengths, layer(x, frames).split([*lengths.values()]), strict=True):
            found[one].append(y.transpose(0, 1).flatten(1))
        for number, (one, length) in enumerate(lengths.items()):
            done[one] += length
            if layer.size:
                earlier[one] = frames.later[0][number]
    return [torch.cat(one, 1) for one in found]


@pytest.mark.parametrize("positions", [1, 4, 32])
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_a_stream_is_convolved_as_the_whole_sequence_and_no_bit_depends_on_the_passes(
    name: str, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, streams = FrameConvolution(LAYERS[name]), [torch.randn(16, frames * positions) for frames in (9, 9, 7, 12)]
    alone = [convolve(layer, [one], [{0: one.shape[1] // positions}], positions)[0] for one in streams]
    for one, found in zip(streams, alone, strict=True):
        torch.testing.assert_close(found, convolve_whole(LAYERS[name], one), atol=1e-5, rtol=1e-5)
    passes = [{0: 1, 1: 1}, {3: 5}, {2: 3, 0: 3, 1: 3, 3: 6}, {1: 5, 0: 5}, {3: 1, 2: 4}]
    monkeypatch.setattr(frame_layers, "LARGEST_PART", 16 * 7 * positions * 2)  # two frames
    for found, expected in zip(convolve(layer, streams, passes, positions), alone, strict=True):
        assert torch.equal(found, expected)


@torch.no_grad()
def test_the_bits_of_a_product_do_not_depend_on_the_number_of_rows_or_their_place() -> None:
    """Those of torch's own layer do, which is why there are tiles."""
    layer, x, chance = nn.Linear(96, 40), torch.randn(64, 96), random.Random(0)
    product = join_products(layer)
    whole = product.multiply_rows(x)
    torch.testing.assert_close(whole, layer(x))
    slices = [slice(start, start + chance.randint(1, 16)) for start in chance.choices(range(48), k=40)]
    assert all(torch.equal(product.multiply_rows(x[part]), whole[part]) for part in slices)


@torch.no_grad()
def test_products_with_the_same_input_are_one() -> None:
    layers, x = [nn.Linear(8, 5, bias=False), nn.Linear(8, 3, bias=False)], torch.randn(6, 8)
    torch.testing.assert_close(join_products(*layers).multiply_rows(x), torch.cat([layer(x) for layer in layers], 1))
    assert TiledProduct(torch.ones(1, 8), torch.ones(1)).multiply_rows(x).shape == (6, 1)


def test_what_is_kept_is_not_a_view_of_the_frames() -> None:
    layer = FrameConvolution(nn.Conv1d(3, 3, 7))
    frames = FramePass([1000], torch.zeros(1, layer.size), [layer.size])
    with torch.no_grad():
        layer(torch.zeros(1000, 3, 1), frames)
    assert frames.later[0].untyped_storage().nbytes() == 3 * 6 * 4


def test_groups_of_several_channels_are_refused() -> None:
    for grouped in (nn.Conv1d(4, 4, 3, groups=2), nn.Conv1d(4, 8, 3, groups=4), nn.ConvTranspose1d(4, 4, 2, 2, groups=4)):
        with pytest.raises(ValueError, match="only depthwise"):
            FrameConvolution(grouped)  # type: ignore[arg-type]  # of the union
