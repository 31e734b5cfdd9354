"""Tests of `overtone.data_prep.audio_codecs.streamed_convolutions`, with padded convolutions over the whole sequence as reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overtone.data_prep.audio_codecs.streamed_convolutions import StreamedConvolution, StreamedDecoder


class Padded(nn.Module):
    """A causal convolution as codecs have it."""

    def __init__(self, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv, self.padding = nn.Conv1d(3, 3, kernel, dilation=dilation), (kernel - 1) * dilation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(F.pad(x, (self.padding, 0)))
        return y


class Trimmed(nn.Module):
    """A causal transposed convolution as codecs have it."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv, self.stride = nn.ConvTranspose1d(3, 3, kernel, stride), stride

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y[..., : x.shape[-1] * self.stride]


LAYERS = [Padded(7, 1), Padded(3, 9), Padded(1, 1), Trimmed(2, 2), Trimmed(10, 5), Trimmed(16, 3)]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{type(layer).__name__}-{layer.conv.kernel_size[0]}-{layer.conv.stride[0]}")
@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 1, 6]])
def test_a_convolution_in_chunks_is_that_of_the_whole_sequence(layer: Padded | Trimmed, sizes: list[int]) -> None:
    streamed, x = StreamedConvolution(layer.conv), torch.randn(2, 3, 12)
    found = torch.cat([streamed(piece) for piece in x.split(sizes, -1)], -1)
    torch.testing.assert_close(found, layer(x))


def test_streams_that_take_turns_have_their_own_earlier_inputs() -> None:
    decoder = nn.Sequential(Trimmed(6, 3), nn.Sequential(nn.ReLU(), Padded(5, 2)), Padded(3, 1))
    streamed, x = StreamedDecoder(decoder, (Padded, Trimmed)), torch.randn(2, 1, 3, 10)
    assert {id(one) for one in streamed.decoder.parameters()} == {id(one) for one in decoder.parameters()}
    earlier: list[list[Tensor | None]] = [[], []]
    found: list[list[Tensor]] = [[], []]
    for stream, start, end in ((0, 0, 4), (1, 0, 1), (0, 4, 5), (1, 1, 10), (0, 5, 10)):
        piece = x[stream, ..., start:end]
        found[stream].append(streamed.resume(earlier[stream], lambda piece=piece: streamed.decoder(piece)))  # type: ignore[misc]
    for stream in (0, 1):
        torch.testing.assert_close(torch.cat(found[stream], -1), decoder(x[stream]))


def test_what_is_kept_is_not_a_view_of_the_chunk() -> None:
    streamed = StreamedConvolution(nn.Conv1d(3, 3, 7))
    streamed(torch.zeros(1, 3, 1000))
    assert streamed.earlier is not None and streamed.earlier.untyped_storage().nbytes() == 3 * 6 * 4


def test_a_convolution_that_skips_inputs_or_pads_them_is_refused() -> None:
    with pytest.raises(ValueError, match="skips inputs"):
        StreamedConvolution(nn.Conv1d(3, 3, 4, stride=2))
    for padded in (
        nn.Conv1d(3, 3, 3, padding=1),
        nn.ConvTranspose1d(3, 3, 4, 2, padding=1),
        nn.ConvTranspose1d(3, 3, 4, 2, output_padding=1),
    ):
        with pytest.raises(ValueError, match="padding of its own"):
            StreamedConvolution(padded)  # type: ignore[arg-type]  # of the union


def test_the_modules_keep_nothing_of_a_stream_even_after_a_failure() -> None:
    streamed = StreamedDecoder(nn.Sequential(Padded(5, 2), Padded(3, 1)), (Padded,))
    earlier: list[Tensor | None] = []
    streamed.resume(earlier, lambda: streamed.decoder(torch.zeros(1, 3, 4)))
    with pytest.raises(RuntimeError):
        streamed.resume(earlier, lambda: streamed.decoder(torch.zeros(1, 4, 4)))
    assert [one.earlier for one in streamed.decoder] == [None, None] and len(earlier) == 2
