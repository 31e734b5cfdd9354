"""Samples of a stream equal those of decoding all its codes at once, in every bit, whatever is decoded with it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from overtone.data_prep.audio_codecs import qwen3_tts_frame_decoder
from overtone.data_prep.audio_codecs.qwen3_tts_frame_decoder import FRAMES_AT_ONCE, Qwen3TTSFrameDecoder, divide_into_passes
from overtone.data_prep.audio_codecs.qwen3_tts_stream_decoder import Qwen3TTSStreamDecoder
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts

FRAME, COMPANY = 1920, 9


@pytest.fixture(scope="module")
def stock(nano: Path) -> Any:
    return stock_qwen_tts.load(nano).model.speech_tokenizer.model.decoder


@pytest.fixture(scope="module")
def decoder(stock: Any) -> Qwen3TTSFrameDecoder:
    return Qwen3TTSFrameDecoder(stock)


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    """8 s of codes of each stream: longer than the transformer's window."""
    return torch.randint(0, 64, (COMPANY, 100, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def alone(decoder: Qwen3TTSFrameDecoder, codes: torch.Tensor) -> list[torch.Tensor]:
    """The wave of each stream, decoded in one pass of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qwen3_tts_frame_decoder, "FRAMES_AT_ONCE", codes.shape[1])
        return [decoder.feed([decoder.open()], [one])[0] for one in codes]


def test_the_samples_are_those_of_the_stock_decoder(stock: Any, codes: torch.Tensor, alone: list[torch.Tensor]) -> None:
    with torch.inference_mode():
        whole = stock(codes[:3].mT)[:, 0]
    assert whole.std() > 0.05
    torch.testing.assert_close(torch.stack(alone[:3]), whole, atol=5e-5, rtol=0)


@pytest.mark.parametrize("company", range(1, COMPANY + 1))
def test_no_bit_of_a_stream_depends_on_its_company_or_its_chunks(
    company: int, decoder: Qwen3TTSFrameDecoder, codes: torch.Tensor, alone: list[torch.Tensor]
) -> None:
    """As many streams as `company` begin together, and then join and leave passes of random chunks, also past the window."""
    chance, most = random.Random(company), 100 if company in (1, 3) else 14
    streams, found = [decoder.open() for _ in range(company)], [list[torch.Tensor]() for _ in range(company)]
    while running := [number for number, stream in enumerate(streams) if stream.frames < most]:
        chosen = running if not found[0] else chance.sample(running, chance.randint(1, len(running)))
        lengths = [min(chance.choice((1, 2, 3, 4, 5, most // 3)), most - streams[number].frames) for number in chosen]
        pieces = [codes[number, streams[number].frames :][:length] for number, length in zip(chosen, lengths, strict=True)]
        for number, wave in zip(chosen, decoder.feed([streams[number] for number in chosen], pieces), strict=True):
            found[number].append(wave)
    for waves, expected in zip(found, alone, strict=False):
        assert torch.equal(torch.cat(waves), expected[: most * FRAME])


def test_whole_clips_have_the_same_bits(
    decoder: Qwen3TTSFrameDecoder, codes: torch.Tensor, alone: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qwen3_tts_frame_decoder, "FRAMES_AT_ONCE", 30)
    assert torch.equal(decoder.decode(codes[:2]), torch.stack(alone[:2]))
    assert decoder.decode(codes[:2, :0]).shape == (2, 0)


def test_no_pass_has_more_frames_than_fit_the_memory() -> None:
    passes = divide_into_passes([20, 100, 5])
    assert passes == [[(0, 0, 20), (1, 0, 44)], [(1, 44, 100), (2, 0, 5)]]
    assert all(sum(share.stop - share.start for share in one) <= FRAMES_AT_ONCE for one in divide_into_passes([32] * 64))


def test_streams_in_one_pass_need_fewer_operations_than_apart(stock: Any, decoder: Qwen3TTSFrameDecoder, codes: torch.Tensor) -> None:
    def count(one: Any, streams: int) -> int:
        opened = [one.open() for _ in range(streams)]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            one.feed(opened, [*codes[:streams, :2]])
        return sum(event.count for event in profile.key_averages())

    assert count(decoder, 8) < 1.1 * count(decoder, 1) < count(Qwen3TTSStreamDecoder(stock), 1)


def test_a_code_that_its_codebook_does_not_have_is_refused(decoder: Qwen3TTSFrameDecoder) -> None:
    for book in (0, 3):
        for code in (64, -1):
            with pytest.raises(IndexError):
                decoder.feed([decoder.open()], [F.one_hot(torch.tensor([book]), 16) * code])


def test_a_layer_that_the_codec_does_not_have_is_refused(stock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "decoder", nn.ModuleList([nn.Tanh()]))
    with pytest.raises(TypeError, match="Tanh is not a layer of the 12 Hz codec's decoder"):
        Qwen3TTSFrameDecoder(stock)
