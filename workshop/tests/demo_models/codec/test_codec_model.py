"""The written folder gives, with the stock loader, the codes that training computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from overtone.data_prep.audio_codecs.qwen3_tts_codec import encode_clips, load_codec
from workshop.demo_models.codec import codec_model
from workshop.demo_models.codec.codebooks import Codebooks
from workshop.demo_models.codec.training_clips import CodecClip


def test_the_stock_class_gives_the_nearest_entries_to_the_encoder_output(
    model: object, books: Codebooks, clips: list[CodecClip], tmp_path: Path
) -> None:
    stock = load_codec(codec_model.write_folder(model, tmp_path / "codec"), "cpu")
    with torch.inference_mode():
        latent = codec_model.encode_latent(model.encoder, torch.from_numpy(clips[0].wave)[None])[0].T
    expected = books.encode(latent).numpy()
    assert len(np.unique(expected)) > 16
    assert np.array_equal(encode_clips(stock, [clips[0].wave])[0], expected)


def test_the_parts_together_equal_the_stock_decoder(model: object, books: Codebooks, clips: list[CodecClip]) -> None:
    codes = books.encode(books.project(clips[0].features.vectors(1.0)))[None]
    with torch.inference_mode():
        frames = codec_model.decode_frames(model.decoder, codes)
        wave = codec_model.generate_wave(model.decoder, codec_model.upsample_frames(model.decoder, frames))
        assert frames.shape == (1, codec_model.LATENT, codes.shape[1])
        assert torch.equal(wave.clamp(-1, 1), model.decoder(codes.transpose(1, 2))[:, 0])
    assert wave.shape == (1, 1920 * codes.shape[1])


def test_encoder_and_decoder_have_the_same_codebooks(model: object, books: Codebooks) -> None:
    acoustic = model.encoder.quantizer.acoustic_residual_vector_quantizer.layers
    for index, layer in enumerate(model.decoder.quantizer.rvq_rest.vq.layers):
        assert torch.equal(layer._codebook.embedding_sum, books.acoustic[index])
        assert torch.equal(acoustic[index].codebook.embed, books.acoustic[index])
    assert torch.equal(model.decoder.quantizer.rvq_first.vq.layers[0]._codebook.embedding_sum, books.semantic)


def test_the_same_seed_gives_the_same_model_and_keeps_the_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other = codec_model.build_model(1).state_dict(), codec_model.build_model(1).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.rand(1), expected)


def test_the_weights_file_is_small(model: object, tmp_path: Path) -> None:
    folder = codec_model.write_folder(model, tmp_path / "codec")
    assert (folder / "model.safetensors").stat().st_size < 6e6
