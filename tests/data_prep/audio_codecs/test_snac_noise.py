"""The decoder's noise is a fixed function of layer and frame, and otherwise that of the package."""

from __future__ import annotations

import numpy as np
import torch
from snac.layers import NoiseBlock
from torch import nn

from overtone.data_prep.audio_codecs.snac_noise import FrameNoise, fix_noise, make_noise, number_frames


def test_a_frame_has_the_same_noise_in_every_window() -> None:
    whole = make_noise(1, 0, 9, 32)
    assert whole.shape == (9 * 32,) and whole.dtype == np.float32
    assert np.array_equal(make_noise(1, 4, 3, 32), whole[4 * 32 : 7 * 32])
    assert not np.array_equal(make_noise(2, 0, 9, 32), whole)
    assert np.unique(whole).size == whole.size


def test_the_noise_is_standard_normal() -> None:
    noise = make_noise(0, 0, 100, 1000)
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02


def test_a_layer_computes_what_the_package_computes_from_the_same_noise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 3, 1), NoiseBlock(3), nn.Sequential(NoiseBlock(3)))
    weights, x = {name: value.clone() for name, value in model.state_dict().items()}, torch.randn(2, 3, 24)
    drawn = []

    def draw(*shape: object, **_: object) -> torch.Tensor:
        drawn.append(torch.from_numpy(make_noise(len(drawn), 5, 3, 8)).expand(2, 1, 24))
        return drawn[-1]

    randn, torch.randn = torch.randn, draw
    try:
        expected = model(x)
    finally:
        torch.randn = randn
    fix_noise(model)
    assert isinstance(model[1], FrameNoise) and isinstance(model[2][0], FrameNoise)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items()) and len(drawn) == 2
    with number_frames(5, 3):
        assert torch.equal(model(x), expected) and not torch.equal(expected, model[0](x))
