"""Decoding in chunks gives the same samples as decoding at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from overtone.data_prep.audio_codecs import qwen3_tts_stream_decoder
from overtone.data_prep.audio_codecs.qwen3_tts_stream_decoder import Qwen3TTSStream, Qwen3TTSStreamDecoder
from overtone.data_prep.audio_codecs.streamed_convolutions import StreamedConvolution
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts

FRAME = 1920


@pytest.fixture(scope="module")
def codec(nano: Path) -> Any:
    return stock_qwen_tts.load(nano).model.speech_tokenizer


@pytest.fixture(scope="module")
def decoder(codec: Any) -> Qwen3TTSStreamDecoder:
    return Qwen3TTSStreamDecoder(codec.model.decoder)


@pytest.fixture(scope="module")
def minute() -> torch.Tensor:
    """60 s of codes [1, 750, 16]."""
    return torch.randint(0, 64, (1, 750, 16), generator=torch.Generator().manual_seed(0))


def test_decoding_a_minute_in_chunks_gives_the_same_samples(codec: Any, decoder: Qwen3TTSStreamDecoder, minute: torch.Tensor) -> None:
    with torch.inference_mode():
        whole = codec.model.decoder(minute.mT)[:, 0]
    pieces = decoder.decode(minute)
    assert pieces.shape == whole.shape == (1, 750 * FRAME) and whole.std() > 0.05
    torch.testing.assert_close(pieces, whole, atol=5e-5, rtol=0)
    until = qwen3_tts_stream_decoder.CHUNK_FRAMES + 5
    stock_wave = torch.from_numpy(codec.decode([{"audio_codes": minute[0, :until]}])[0][0])
    border = slice(qwen3_tts_stream_decoder.CHUNK_FRAMES * FRAME, until * FRAME)
    assert (stock_wave - whole[0, : until * FRAME])[border].abs().max() > 1e-4, (
        "the package still decodes other samples after a chunk boundary"
    )


@pytest.mark.parametrize("sizes", [[1] * 30, [4, 8, 16, 2], [3, 27]])
def test_a_stream_equals_decoding_at_once(codec: Any, decoder: Qwen3TTSStreamDecoder, minute: torch.Tensor, sizes: list[int]) -> None:
    codes = torch.cat([minute[:, :30], minute[:, 100:130]])
    with torch.inference_mode():
        whole = codec.model.decoder(codes.mT)[:, 0]
    stream = Qwen3TTSStream(decoder)
    pieces = [stream.feed(piece) for piece in codes.split(sizes, 1)]
    assert [piece.shape[1] for piece in pieces] == [size * FRAME for size in sizes]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=5e-5, rtol=0)


def test_streams_that_take_turns_do_not_depend_on_each_other(decoder: Qwen3TTSStreamDecoder, minute: torch.Tensor) -> None:
    rows = minute[:, :120], minute[:, 120:160]
    alone = [decode(Qwen3TTSStream(decoder), row, 10) for row in rows]
    long, short = Qwen3TTSStream(decoder), Qwen3TTSStream(decoder)
    found = [decode(long, rows[0][:, :80], 10), decode(short, rows[1][:, :20], 10)]
    for start in (0, 10):
        found[1] = torch.cat([found[1], short.feed(rows[1][:, 20 + start : 30 + start])], 1)
        found[0] = torch.cat([found[0], decode(long, rows[0][:, 80 + 2 * start : 100 + 2 * start], 10)], 1)
    for one, expected in zip(found, alone, strict=True):
        torch.testing.assert_close(one, expected, atol=0, rtol=0)


def test_streams_are_fed_together_as_one_after_another(decoder: Qwen3TTSStreamDecoder, minute: torch.Tensor) -> None:
    pieces = [minute[0, :3], minute[0, 5:6]]
    found = decoder.feed([decoder.open() for _ in pieces], pieces)
    assert [torch.equal(one, Qwen3TTSStream(decoder).feed(piece[None])[0]) for one, piece in zip(found, pieces, strict=True)] == [True] * 2


def test_constants_of_the_weights_are_computed_once_and_change_no_bit(
    codec: Any, decoder: Qwen3TTSStreamDecoder, minute: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Calls(TorchDispatchMode):
        """Names of the operations."""

        def __init__(self) -> None:
            super().__init__()
            self.names = list[str]()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.overloadpacket.__name__)
            return func(*args, **kwargs or {})

    monkeypatch.setattr(qwen3_tts_stream_decoder, "_ConstantSnake", lambda stock: stock)
    monkeypatch.setattr(qwen3_tts_stream_decoder, "_ConstantCodebook", lambda stock: stock)
    stock, found, names = Qwen3TTSStreamDecoder(codec.model.decoder), [], []
    for one in (stock, decoder):
        with Calls() as calls:
            found.append(decode(Qwen3TTSStream(one), minute[:, :15], 5))
        names.append(calls.names)
    assert torch.equal(*found)
    assert names[0].count("exp") > 3 * 40 and "exp" not in names[1] and len(names[1]) < 0.7 * len(names[0])


def test_codes_are_moved_to_the_device_of_the_codec(decoder: Qwen3TTSStreamDecoder, minute: torch.Tensor) -> None:
    """The server's codes are on the CPU, also if the codec is on a GPU."""
    codes, seen = minute[:, :2], list[object]()

    class OnAnotherDevice:
        def to(self, device: torch.device) -> torch.Tensor:
            seen.append(device)
            return codes

    assert Qwen3TTSStream(decoder).feed(OnAnotherDevice()).shape == (1, 2 * FRAME) and seen == [torch.device("cpu")]  # type: ignore[arg-type]


def decode(stream: Qwen3TTSStream, codes: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([stream.feed(piece) for piece in codes.split(size, 1)], 1)


def test_the_decoder_shares_its_weights_and_leaves_the_codec_as_it_was(codec: Any, decoder: Qwen3TTSStreamDecoder) -> None:
    theirs, ours = {id(one) for one in codec.model.decoder.parameters()}, {id(one) for one in decoder.streamed.decoder.parameters()}
    assert ours and ours < theirs
    assert not any(isinstance(one, StreamedConvolution) for one in codec.model.decoder.modules())
