"""Mimi's sound in chunks is the sound of the stock decoder at once, to 1e-5 of full scale."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import MimiModel
from transformers.models.mimi.modeling_mimi import MimiConv1d

from overtone.data_prep.audio_codecs.mimi_stream_decoder import MimiStream, MimiStreamDecoder
from overtone.finetune.errors import UserError
from overtone.recipes.csm.model import tiny_checkpoint
from overtone.recipes.csm.model.tiny_checkpoint import BASE_VOCABULARY, PRETOKENIZE, SENTENCES, SPECIAL
from overtone.recipes.tiny_checkpoints import train_byte_tokenizer

FRAME, TOLERANCE = 1920, 1e-5


@pytest.fixture(scope="module")
def codec() -> Any:
    """A tiny Mimi whose transformer matters as much as the rest, and whose waves are within [-1, 1]."""
    torch.manual_seed(0)
    tokenizer = train_byte_tokenizer(PRETOKENIZE, SENTENCES, BASE_VOCABULARY, SPECIAL)
    model = MimiModel(tiny_checkpoint.make_config(tokenizer).codec_config).eval()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("embed_sum"):
            tensor.data.normal_()
        if "layer_scale" in name:
            tensor.data.fill_(1.0)
    last = [layer for layer in model.modules() if isinstance(layer, MimiConv1d) and layer.conv.out_channels == 1][-1].conv
    for tensor in (last.weight, last.bias):
        tensor.data /= 50.0
    return model


@pytest.fixture(scope="module")
def decoder(codec: Any) -> MimiStreamDecoder:
    return MimiStreamDecoder(codec)


@pytest.fixture(scope="module")
def codes() -> torch.Tensor:
    """12.8 s [1, 160, 4], which is more than the window of the transformer."""
    return torch.randint(0, 32, (1, 160, 4), generator=torch.Generator().manual_seed(0))


def test_up_to_the_window_the_sound_is_that_of_the_stock_class(codec: Any, decoder: MimiStreamDecoder, codes: torch.Tensor) -> None:
    with torch.inference_mode():
        whole = codec.decode(codes[:, :120].mT).audio_values[:, 0]
    found = decoder.decode(codes[:, :120])
    assert found.shape == whole.shape == (1, 120 * FRAME) and whole.std() > 0.02 and whole.abs().max() < 1
    torch.testing.assert_close(found, whole, atol=TOLERANCE, rtol=0)


def test_after_the_window_the_sound_is_that_of_transformers_5(codec: Any, decoder: MimiStreamDecoder, codes: torch.Tensor) -> None:
    """transformers 4 attends to everything; its own layers with the window as mask give the sound here."""
    positions = torch.arange(320)
    distance = positions[:, None] - positions
    mask = torch.where((distance >= 0) & (distance < 250), 0.0, -torch.inf)[None, None]
    parts = codec.decoder if hasattr(codec.decoder, "decoder_seanet") else codec
    with torch.inference_mode():
        stock = codec.decode(codes.mT).audio_values[:, 0]
        inner = parts.upsample(codec.quantizer.decode(codes.mT)).mT
        hidden = parts.decoder_transformer(inner, attention_mask=mask, position_ids=positions[None], use_cache=False)[0].mT
        whole = (parts.decoder_seanet if parts is not codec else codec.decoder)(hidden)[:, 0]
    found = decoder.decode(codes)
    torch.testing.assert_close(found, whole, atol=TOLERANCE, rtol=0)
    if transformers.__version__ < "5":
        assert (found - stock)[:, : 125 * FRAME].abs().max() < TOLERANCE < (found - stock).abs().max()


@pytest.mark.parametrize("sizes", [[1] * 30, [4, 8, 16, 132], [3, 157]])
def test_a_stream_equals_decoding_at_once(decoder: MimiStreamDecoder, codes: torch.Tensor, sizes: list[int]) -> None:
    both, stream = torch.cat([codes, codes.flip(1)])[:, : sum(sizes)], MimiStream(decoder)
    pieces = [stream.feed(piece) for piece in both.split(sizes, 1)]
    assert [piece.shape[1] for piece in pieces] == [size * FRAME for size in sizes]
    torch.testing.assert_close(torch.cat(pieces, 1), decoder.decode(both), atol=TOLERANCE, rtol=0)


def test_no_frames_and_codes_beyond_the_codebook_are_decoded(decoder: MimiStreamDecoder, codes: torch.Tensor) -> None:
    """CSM has three codes more than the codec."""
    assert decoder.decode(codes[:, :0]).shape == (1, 0)
    beyond = codes[:, :3].clone()
    beyond[0, 1, 2] = 31
    expected = decoder.decode(beyond)
    beyond[0, 1, 2] = 34
    assert decoder.decode(beyond).equal(expected)


def test_a_codec_that_sees_the_future_is_refused() -> None:
    config = SimpleNamespace(use_causal_conv=False, trim_right_ratio=1.0, pad_mode="constant")
    with pytest.raises(UserError, match="convolutions are not causal"):
        MimiStreamDecoder(SimpleNamespace(config=config))


def test_convolutions_are_in_full_fp32(decoder: MimiStreamDecoder, codes: torch.Tensor) -> None:
    """cuDNN's default is TF32, with which a stream on a GPU would differ from decoding at once."""
    found = []
    convolution = next(layer for layer in decoder.streamed.decoder.modules() if isinstance(layer, nn.Conv1d) and layer.out_channels == 1)
    with convolution.register_forward_pre_hook(lambda *_: found.append(torch.backends.cudnn.allow_tf32)):
        decoder.decode(codes[:, :2])
    assert found == [False]
