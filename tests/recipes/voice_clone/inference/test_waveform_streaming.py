"""Decoding in chunks gives the same samples as decoding at once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes.voice_clone.inference import reference_package, waveform_streaming

FRAME = 1920


@pytest.fixture(scope="module")
def codec(nano: Path) -> Any:
    return reference_package.load(nano).model.speech_tokenizer


@pytest.fixture(scope="module")
def minute() -> torch.Tensor:
    """60 s of codes [1, 750, 16]."""
    return torch.randint(0, 64, (1, 750, 16), generator=torch.Generator().manual_seed(0))


def test_decoding_a_minute_in_chunks_gives_the_same_samples(codec: Any, minute: torch.Tensor) -> None:
    with torch.inference_mode():
        whole = codec.model.decoder(minute.mT)[:, 0]
    pieces = waveform_streaming.decode_codes(codec.model.decoder, minute)
    assert pieces.shape == whole.shape == (1, 750 * FRAME) and whole.std() > 0.05
    torch.testing.assert_close(pieces, whole, atol=5e-5, rtol=0)
    until = waveform_streaming.CHUNK_FRAMES + 5
    stock_wave = torch.from_numpy(codec.decode([{"audio_codes": minute[0, :until]}])[0][0])
    border = slice(waveform_streaming.CHUNK_FRAMES * FRAME, until * FRAME)
    assert (stock_wave - whole[0, : until * FRAME])[border].abs().max() > 1e-4, (
        "the package still decodes other samples after a chunk boundary"
    )


@pytest.mark.parametrize("sizes", [[1] * 30, [4, 8, 16, 2], [3, 27]])
def test_a_stream_equals_decoding_at_once(codec: Any, minute: torch.Tensor, sizes: list[int]) -> None:
    codes = torch.cat([minute[:, :30], minute[:, 100:130]])
    with torch.inference_mode():
        whole = codec.model.decoder(codes.mT)[:, 0]
    stream = waveform_streaming.StreamingCodecDecoder(codec.model.decoder)
    pieces = [stream.feed(piece) for piece in codes.split(sizes, 1)]
    assert [piece.shape[1] for piece in pieces] == [size * FRAME for size in sizes]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=5e-5, rtol=0)


def test_the_lookback_of_the_convolutions_is_bounded_tightly(codec: Any) -> None:
    """The bound computed from the kernels holds and is at most two frames too large."""
    decoder = codec.model.decoder
    hidden = torch.randn(1, decoder.config.latent_dim, 40, generator=torch.Generator().manual_seed(0))
    changed = hidden.clone()
    changed[..., 20] += 1

    def convolved(x: torch.Tensor) -> torch.Tensor:
        for block in (*itertools.chain.from_iterable(decoder.upsample), *decoder.decoder):
            x = block(x)
        return x[0, 0]

    with torch.inference_mode():
        reached = (convolved(hidden) != convolved(changed)).nonzero().flatten() / FRAME
    assert reached.min() >= 20
    assert 0 <= waveform_streaming.count_lookback_frames(decoder) - (int(reached.max()) - 20) <= 2
