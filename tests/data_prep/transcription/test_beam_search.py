"""Beams of a batch give what openai-whisper gives for each pack alone."""

from __future__ import annotations

import pytest
import torch
import whisper

from overtone.data_prep.transcription.beam_search import decode_beams
from overtone.data_prep.transcription.whisper_engine import load_whisper

SCALE = 100.0
"""With quieter audio, random weights repeat the token before."""


@pytest.fixture(scope="module")
def babbling(random_whisper):
    return load_whisper(str(random_whisper), "cpu")


@pytest.mark.parametrize("language", ["en", None])
@pytest.mark.parametrize("beams", [2, 5])
def test_a_batch_gives_the_text_of_each_pack_alone(babbling, beams, language) -> None:
    features = SCALE * torch.randn(3, babbling.dims.n_audio_ctx, babbling.dims.n_audio_state, generator=torch.Generator().manual_seed(0))
    options = whisper.DecodingOptions(language=language, beam_size=beams, without_timestamps=True, sample_len=6, fp16=False)
    together = decode_beams(babbling, features, options)
    alone = [whisper.decode(babbling, one[None], options)[0] for one in features]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.avg_logprob for one in together] == pytest.approx([one.avg_logprob for one in alone], abs=1e-4)
    assert [one.language for one in together] == [one.language for one in alone]
    assert len({tuple(one.tokens) for one in together}) > 1, "equal packs would not show that beams keep to their own audio"


def test_the_decoder_is_left_as_it_was(babbling) -> None:
    features = torch.randn(2, babbling.dims.n_audio_ctx, babbling.dims.n_audio_state)
    decode_beams(babbling, features, whisper.DecodingOptions(language="en", beam_size=2, sample_len=2, fp16=False))
    assert not any(block.cross_attn._forward_pre_hooks or block.cross_attn._forward_hooks for block in babbling.decoder.blocks)
