"""A small Qwen3-TTS 12 Hz tokenizer: its config, its parts as training needs them, and the folder that the stock loader reads.

A Mimi encoder; its latent is quantized twice, by 1 semantic and by 15 residual acoustic codebooks; then a causal decoder. Most layers of
the decoder's waveform part run at low rates: at 24 kHz, where a layer costs most, only 16 channels are left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from overtone.data_prep.audio_codecs.qwen_tts_import import import_qwen_tts
from overtone.finetune.storage import files
from overtone.recipes.qwen3_tts.model.config_factory import PREPROCESSOR_CONFIG, make_codec_config

from .codebooks import ENTRIES, WIDTH, Codebooks

LATENT = 128
"""Channels between the codes and the waveform part."""


def make_config() -> dict[str, Any]:
    """`config.json`: 0.9 M parameters in the encoder, 1.6 M in the decoder."""
    small = make_codec_config(ENTRIES)
    channels = 96
    encoder = {
        "hidden_size": channels,
        "num_filters": 16,
        "codebook_dim": WIDTH,
        "vector_quantization_hidden_dimension": WIDTH,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": channels // 4,
        "intermediate_size": 2 * channels,
        "upsample_groups": channels,
        "layer_scale_initial_scale": 0.1,
    }
    decoder = {
        "codebook_dim": 2 * WIDTH,
        "semantic_codebook_size": ENTRIES,
        "vector_quantization_hidden_dimension": WIDTH,
        "latent_dim": LATENT,
        "hidden_size": LATENT,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": LATENT // 4,
        "intermediate_size": 2 * LATENT,
        "num_hidden_layers": 2,
        "upsampling_ratios": [2, 2, 2],  # to 100 Hz, the rate of the features that it learns first
        "upsample_rates": [8, 6, 5],
        "decoder_dim": 128,
        "layer_scale_initial_scale": 0.1,
    }
    return {**small, "encoder_config": small["encoder_config"] | encoder, "decoder_config": small["decoder_config"] | decoder}


def build_model(seed: int) -> Any:
    """The package's own model in fp32 with random weights and empty codebooks."""
    import_qwen_tts()
    from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**make_config())).float()


def encode_latent(encoder: Any, waves: Tensor) -> Tensor:
    """[B, samples] → [B, WIDTH, frames]: the input of the acoustic codebooks. As `MimiModel._encode_frame`, with gradients."""
    inside = encoder.encoder(waves.unsqueeze(1))
    inside = encoder.encoder_transformer(inside.transpose(1, 2), return_dict=True)[0].transpose(1, 2)
    projected: Tensor = encoder.quantizer.acoustic_residual_vector_quantizer.input_proj(encoder.downsample(inside))
    return projected


def decode_frames(decoder: Any, codes: Tensor) -> Tensor:
    """Codes [B, frames, 16] → [B, LATENT, frames] at 12.5 Hz: the part with attention."""
    inside = decoder.pre_conv(decoder.quantizer.decode(codes.transpose(1, 2))).transpose(1, 2)
    found: Tensor = decoder.pre_transformer(inputs_embeds=inside).last_hidden_state.transpose(1, 2).contiguous()
    return found


def upsample_frames(decoder: Any, inside: Tensor) -> Tensor:
    """[B, LATENT, frames] → [B, LATENT, 8·frames] at 100 Hz."""
    for pair in decoder.upsample:
        for layer in pair:
            inside = layer(inside)
    return inside


def generate_wave(decoder: Any, inside: Tensor) -> Tensor:
    """[B, LATENT, 8·frames] → [B, samples]; not clipped, because clipping stops gradients."""
    for layer in decoder.decoder:
        inside = layer(inside)
    return inside.squeeze(1)


def fill_codebooks(model: Any, books: Codebooks) -> None:
    """Copy the codebooks into encoder and decoder, as sums over one use each. The semantic codebook sees only the leading axes: the rest of
    its projection is zero."""
    encoder, decoder = model.encoder.quantizer, model.decoder.quantizer
    semantic, acoustic = encoder.semantic_residual_vector_quantizer, encoder.acoustic_residual_vector_quantizer
    with torch.no_grad():
        semantic.input_proj.weight.copy_(acoustic.input_proj.weight)
        semantic.input_proj.weight[books.leading :] = 0
        for unused in (semantic.output_proj, acoustic.output_proj):
            unused.weight.zero_()  # the package never reads them; zeros compress well
        _copy_tables([layer.codebook.embed_sum for layer in (*semantic.layers, *acoustic.layers)], books)
        _copy_tables([layer._codebook.embedding_sum for layer in (*decoder.rvq_first.vq.layers, *decoder.rvq_rest.vq.layers)], books)
    for layer in (*semantic.layers, *acoustic.layers):
        layer.codebook._embed = None  # computed at the first use, and outdated now


def _copy_tables(tables: list[Tensor], books: Codebooks) -> None:
    for table, entries in zip(tables, books.list_tables(), strict=True):
        table.copy_(entries)


def round_to_fp16(module: nn.Module) -> None:
    """Round every weight to the value that it will have after loading from fp16, so that codes computed now stay valid."""
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(tensor.half().float())


def write_folder(model: Any, folder: Path) -> Path:
    """Write a new folder for `Qwen3TTSTokenizer.from_pretrained`, with fp16 weights."""
    weights = {name: tensor.half().contiguous().clone() for name, tensor in model.state_dict().items()}
    temporary = files.fresh_folder(folder.parent, folder.name)
    files.write_in_place(temporary / "config.json", files.json_bytes(make_config()))
    files.write_in_place(temporary / "preprocessor_config.json", files.json_bytes(PREPROCESSOR_CONFIG))
    files.write_in_place(temporary / "model.safetensors", save(weights, metadata={"format": "pt"}))
    files.commit_folder(temporary, folder)
    return folder
