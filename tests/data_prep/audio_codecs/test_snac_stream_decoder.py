"""Tests of `overtone.data_prep.audio_codecs.snac_stream_decoder`: chunks together are the sound of all codes at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overtone.data_prep.audio_codecs import snac_stream_decoder
from overtone.data_prep.audio_codecs.selection import open_codec
from overtone.data_prep.audio_codecs.snac_stream_decoder import StreamingSnacDecoder, count_context_frames, decode_codes
from tests.recipes.codec_lm import tiny_models

pytest.importorskip("snac")
TOLERANCE = 2e-6
"""Kernels for other lengths round differently."""
RELEASED = {
    **tiny_models.SNAC_CONFIG,
    **{"encoder_rates": [2, 4, 8, 8], "decoder_rates": [8, 8, 4, 2], "codebook_size": 4096, "codebook_dim": 8},
}
"""snac_24khz's strides, with few channels."""


@pytest.fixture(scope="module", params=["tiny", "released"])
def codec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = {"tiny": tiny_models.SNAC_CONFIG, "released": RELEASED}[request.param]
    folder = tiny_models.write_codec(tmp_path_factory.mktemp("codec") / request.param, config=config)
    return open_codec(str(folder)).load("cpu")


def make_codes(codec: Any, frames: int) -> torch.Tensor:
    return torch.randint(0, codec.config.codebook_size, (frames, 7), generator=torch.Generator().manual_seed(0))


def feed(codec: Any, codes: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    stream = StreamingSnacDecoder(codec)
    return [*(stream.feed(piece) for piece in codes.split(sizes)), stream.feed(codes[:0], last=True)]


def test_the_reach_of_the_released_codec_is_three_frames(codec: Any) -> None:
    assert count_context_frames(codec) == (3 if codec.config.decoder_rates[0] == 8 else 11)


@pytest.mark.parametrize("sizes", [[1] * 30, [4, 8, 16, 2], [30]])
def test_chunks_are_the_whole_sound(codec: Any, sizes: list[int]) -> None:
    codes = make_codes(codec, 30)
    whole = codec.decode_frames(codes[None])[0]
    chunks = feed(codec, codes, sizes)
    torch.testing.assert_close(torch.cat(chunks), whole, rtol=0, atol=TOLERANCE)
    assert float(whole.abs().max()) > 1000 * TOLERANCE, "not silence"


def test_less_context_would_be_heard(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = make_codes(codec, 30)
    whole = codec.decode_frames(codes[None])[0]
    monkeypatch.setattr(snac_stream_decoder, "count_context_frames", lambda _: 1)
    assert float((torch.cat(feed(codec, codes, [4, 8, 16, 2])) - whole).abs().max()) > 100 * TOLERANCE


def test_sound_begins_before_the_codes_end(codec: Any) -> None:
    reach, step = count_context_frames(codec), codec.config.samples_per_frame
    chunks = feed(codec, make_codes(codec, 30), [reach, 1, 29 - reach])
    assert [len(chunk) // step for chunk in chunks] == [0, 1, 29 - reach, reach]


def test_a_long_sound_is_decoded_in_chunks(codec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = make_codes(codec, 40)
    whole = decode_codes(codec, codes)
    monkeypatch.setattr(snac_stream_decoder, "CHUNK_FRAMES", 16)
    torch.testing.assert_close(decode_codes(codec, codes), whole, rtol=0, atol=TOLERANCE)
    assert len(decode_codes(codec, codes[:0])) == 0


def test_the_last_call_may_have_codes_on_the_cpu(codec: Any) -> None:
    """The session of a GPU gives chunks there, and its results on the CPU; here the meta device stands for the GPU."""
    stream = StreamingSnacDecoder(codec)
    few = torch.zeros(1, 7, dtype=torch.int64)
    assert len(stream.feed(few.to("meta"))) == 0, "the sound of the first frame needs more frames"
    assert len(stream.feed(few)) == 0
